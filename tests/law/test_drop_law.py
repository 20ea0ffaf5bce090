"""The drop law can fail: what a trial leaves behind is seen, also in an attribute that is new."""

from typing import Any

import numpy as np
import pytest

from bayplan.core.model.pods import Spread
from bayplan.core.state import (
    arrays,
    cluster,
    deviceclasses,
    distrust,
    labels,
    podindex,
    storage,
    terms,
    uses,
    zones,
)
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.laws import broken, picture
from bayplan.testing import World
from bayplan.testing.world import node
from bayplan.testing.world import terms as own_terms
from tests.conftest import differences
from tests.plugin.test_registry import WEB, newcomers

# What is not compared after a dropped trial, and why that is safe. A new name is a decision.
NOT_STATE = {
    "Cluster": {
        "static_log": "only grows",
        "load_log": "only grows",
        "victim_log": "only grows",
        "image_versions": "only rise",
        "facts_version": "only rises",
        "_demands": "derived from a row key, the resource columns and the device classes",
        "_undo": "the trial itself",
    },
    "Interner": {"changes": "only rises"},
    "LabelColumn": {"_numbers": "derived from the values, by their version"},
    "LabelColumns": {"columns": "derived from the nodes on demand; broken() recomputes them"},
    "PodIndex": {"keys": "derived from the pods on demand; broken() recomputes them"},
    "Count": {
        "dense": "derived from by_row on demand; broken() recomputes it",
        "sums": "derived from by_row on demand; broken() recomputes them",
    },
    "Term": {"eligible": "derived from matched on demand; broken() recomputes them"},
    "OwnTerms": {"sums": "the same sums, by row key"},
    "TermTable": {"generation": "only rises"},
    "Storage": {"_done": "where inverses go"},
    "DeviceClasses": {"_done": "where inverses go", "_changed": "forgets the demands"},
    "Distrusted": {"_done": "where inverses go", "_touch": "writes the logs"},
    "Uses": {
        "log": "only grows",
        "day_s": "the driver's time, of the last Tick",
        "columns": "derived from the nodes, their pods and pools on demand, by the log",
        "answers": "derived from the columns and the time on demand, by the log",
    },
    "Zones": {
        "_done": "where inverses go",
        "_touch": "writes the logs",
        "_pods": "reads the cluster",
        "_free": "derived from the pods on demand; broken() recomputes it",
        "at_most": "derived from what is published",
        "unsure": "only what to look at again; looking changes nothing that is not so",
        "_due": "when to look again; written by looking, which no trial does",
        "next_s": "the first of these times",
        "columns": "derived from the zones and the pods on demand, by the load log",
    },
}


def test_what_is_not_compared_is_written_down() -> None:
    first = (arrays, cluster, deviceclasses, distrust, labels)
    modules = (*first, podindex, storage, terms, uses, zones)
    for module in modules:
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__ == module.__name__:
                hidden = set(getattr(thing, "NOT_STATE", ()))
                assert hidden == set(NOT_STATE.get(thing.__name__, {})), thing.__name__


def full_cluster() -> Cluster:
    world = World(a=8, b=8, c=0)
    for i, pod in enumerate(newcomers()):
        world.submit(f"p{i}", labels=pod.labels, terms=pod.terms, ports=pod.row.ports)
    world.submit("t", labels={"app": "web"}, terms=own_terms())
    return world.engine.cluster


STATE = [name for name in vars(Cluster()) if name not in Cluster.NOT_STATE]


@pytest.mark.parametrize("name", STATE)
def test_every_attribute_is_compared(name: str) -> None:
    here = full_cluster()
    before = picture(here)
    value = getattr(here, name)
    setattr(here, name, changed(value))

    assert list(differences(before, picture(here)))


def changed(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, np.ndarray):
        other = value.copy()
        other[0] = ~other[0] if other.dtype == np.bool_ else other[0] + 1
        return other
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict):
        return {**value, "new": 1}
    if isinstance(value, list):
        return [*value[:-1], "new"] if len(value) < 8 else ["new", *value[1:]]
    if isinstance(value, frozenset):
        return value | {"new"}
    value.new_attribute = 1
    return value


def test_an_attribute_that_is_new_is_compared() -> None:
    here = full_cluster()
    here.invented = {"by": ["somebody"]}  # type: ignore[attr-defined]
    before = picture(here)
    here.invented["by"].append("else")  # type: ignore[attr-defined]

    assert list(differences(before, picture(here)))


def test_a_forgotten_inverse_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    here = full_cluster()
    pod = next(pod for pod in newcomers() if pod.row.ports)

    def forget() -> None:
        with here.trial():
            here.place(pod, "b")
            monkeypatch.setattr(Cluster, "_use_ports", lambda *_: None)

    with pytest.raises(AssertionError, match="ports"):
        forget()


def test_a_wrong_count_is_seen() -> None:
    here = full_cluster()
    assert broken(here) == []
    term = next(term for term in here.terms.terms.values() if term.matched.by_row)
    term.matched.by_row[next(iter(term.matched.by_row))] += 1

    assert any("matched pods per row" in law for law in broken(here))


def test_kept_trials_last_and_a_dropped_outer_trial_takes_them_along() -> None:
    world = World(a=8)
    here = world.engine.cluster
    first, second = newcomers()[:2]
    with here.trial():
        with here.trial() as inner:
            here.place(first, "a")
            inner.keep()
        assert first.uid in here.pods
    assert not here.pods

    with here.trial() as outer:
        with here.trial():
            here.place(first, "a")
        here.place(second, "a")
        outer.keep()
    assert set(here.pods) == {second.uid}


def test_an_exception_drops_the_trial_and_is_heard() -> None:
    world = World(a=8)
    here = world.engine.cluster

    def fail() -> None:
        with here.trial():
            here.place(newcomers()[0], "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not here.pods


def test_a_vacant_last_row_is_left_as_it_was() -> None:
    world = World(a=8, b=8, c=8)
    here = world.engine.cluster
    here.remove_node("b")
    here.remove_node("c")  # now the last row in use is vacant
    with here.trial():
        here.add_node(node("d"))
    assert (here.height, here.vacant) == (2, [1])


def test_a_node_takes_its_pods_to_its_new_domain() -> None:
    """The sums of a spread constraint follow a single changed node without being built anew."""
    world = World()
    for i in range(16):
        world.node(f"n{i}", labels={"zone": f"z{i % 2}"})
    even = own_terms(spread=(Spread(1, "zone", True, WEB),))
    for i in range(6):
        world.submit(f"w{i}", labels={"app": "web"}, terms=even)
    here = world.engine.cluster
    moved = next(iter(world.running().values()))
    world.node(moved, labels={"zone": "z9"})
    world.submit("next", labels={"app": "web"}, terms=even)
    sums = next(sums for term in here.terms.terms.values() for sums in term.eligible)
    column = here.column("zone")

    assert broken(here) == []
    assert sums.nodes[column.values.codes["z9"]] == 1
    assert sums.sums[column.values.codes["z9"]] == 3  # all three of its zone were on that node
    assert int(world.running()["next"][1:]) % 2 == int(moved[1:]) % 2  # its old zone is empty now
