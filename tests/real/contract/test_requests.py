"""The requests that Bayplan, the demo and kubectl make: both back ends answer the same.

A script is a list of requests. Each runs on etcd with kube-apiserver 1.36.3 and on the embedded
API, beside watches of what it does; then every answer and every event are compared.
"""

import time
from typing import Any

import pytest

from tests.real.contract import bad_scripts, more_scripts, odd_scripts, scripts, workload_scripts
from tests.real.contract.asks import PODS, Ask, pod
from tests.real.contract.conftest import Both
from tests.real.contract.differences import DIFFERENCES
from tests.real.contract.exchange import Server

SCRIPTS = scripts.SCRIPTS | more_scripts.SCRIPTS | bad_scripts.SCRIPTS | odd_scripts.SCRIPTS
SCRIPTS |= workload_scripts.SCRIPTS
LAST = "the-last-{ns}"


def played(server: Server, script: list[Ask]) -> list[Any]:
    """Every answer, and then every event that watches of what was created brought."""
    last = {ask.path: ask.body for ask in script if _creates(ask)} | {PODS: pod("x")}
    since = {path: server.revision(path) for path in last}
    answers: list[Any] = [_narrowed(server.ask(*ask[:5]), ask.but) for ask in script]
    for path, body in sorted(last.items()):
        named = {**body, "metadata": {**body["metadata"], "name": LAST}}
        server.raw("POST", path, named)
        watch = f"{path}?watch=true&resourceVersion={since[path]}&timeoutSeconds=10"
        answers += server.watch(watch, LAST)
        if "{ns}" not in path:
            server.raw("DELETE", f"{path}/{LAST}")
    return answers


def _creates(ask: Ask) -> bool:
    """Whether it makes an object that a copy can be made of."""
    if ask.method != "POST" or not ask.copied or not isinstance(ask.body, dict):
        return False
    return "name" in ask.body["metadata"] and "/pods/" not in ask.path and "?" not in ask.path


def _narrowed(answer: Any, but: str) -> Any:
    return DIFFERENCES[but](answer) if but else answer


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_answer_the_same(name: str, both: Both) -> None:
    _compare(both, SCRIPTS[name])


def _compare(both: Both, script: list[Ask]) -> None:
    real, embedded = played(both.real, script), played(both.embedded, script)
    for number, (ours, theirs) in enumerate(zip(embedded, real, strict=False)):
        what = script[number] if number < len(script) else f"event {number - len(script) + 1}"
        assert ours == theirs, f"{what}"
    assert len(embedded) == len(real)


def test_a_custom_resource_is_served_the_same(both: Both) -> None:
    for server in both:
        server.raw("POST", more_scripts.DEFINITIONS, more_scripts.WIDGETS)
        while server.ask("GET", more_scripts.WIDGET_PATH).status != 200:
            time.sleep(0.05)

    _compare(both, more_scripts.CUSTOM)
