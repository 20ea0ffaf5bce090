# `make test` is all that a fresh machine needs: it makes .venv by itself.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo venv check test prove bench format lock clean

PYTHON ?= python3
# One of the workers has the tests with a real control plane, and mostly waits.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --maxprocesses 8 -p tests.real.one_worker
COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --quiet \
	--custom-compile-command "make lock"

help:  ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: venv  ## every supported system's story, without a cluster
	@$(BIN)/bayplan demo

venv: $(STAMP)  ## .venv with everything that is pinned in requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Bayplan needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

check: venv  ## lint, format, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## check, then every test
	$(PYTEST)

prove: venv  ## the tests with their long proofs
	BAYPLAN_PROVE=1 $(PYTEST) --timeout 7200

bench: venv  ## decisions per second of the engine
	$(BIN)/bayplan bench engine

format: venv  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock:  ## write the lock files again; LOCK=--upgrade takes newer versions
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) --all-extras -o requirements.lock $(LOCK)
	$(COMPILE) --extra fast --extra agent --extra vipu --constraint requirements.lock -o requirements-run.lock  # for the image
	@! grep -n '://' requirements.lock requirements-run.lock

clean:  ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
