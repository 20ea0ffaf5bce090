"""A plugin that fails once is asked again: what is kept never stays behind."""

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins.hooks import Ask, Reads, Refuser
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

RESOURCE = "x.example/card"


class LikesByNamespaces:
    """Likes the node that has the number of namespaces for its row."""

    name = "LikesByNamespaces"
    reads = Reads.STATIC
    fails = False

    def facts(self, ask: Ask, cluster: Cluster) -> Hashable:
        return len(cluster.terms.namespaces)

    def score(self, ask: Ask, view: View) -> Ints:
        if self.fails:
            raise RuntimeError("once")
        return np.where(view.row_numbers == len(view.cluster.terms.namespaces), 100, 0)


class PreparesItself:
    """Refuses nodes without the resource, if a node has it at all."""

    name = "PreparesItself"
    reads = Reads.LOAD
    fails = False

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return self.refuser(ask)(view)

    def refuser(self, ask: Ask) -> Refuser:
        if self.fails:
            raise RuntimeError("once")
        column = ask.demand.columns.get(RESOURCE)
        if column is None:
            return lambda view: np.ones(len(view), dtype=np.int8)
        return lambda view: view.allocatable[column] == 0

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (Reason("no card", False, frozenset()),)


def node(number: int, **more: int) -> Node:
    amounts = {"pods": 9, "cpu": 1000, "memory": 1 << 30, **more}
    return Node(f"n{number}", f"uid-{number}", allocatable=amounts)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    for number in range(3):
        cluster.add_node(node(number))
    return cluster


def verdicts(cluster: Cluster, **plugins: type) -> Verdicts:
    points = {
        point: PluginSet(disabled=(Enabled("*"),), enabled=(Enabled(plugin.__name__, 1),))
        for point, plugin in plugins.items()
    }
    names = {plugin.__name__: plugin for plugin in plugins.values()}
    return Verdicts(cluster, Profile(ProfileConfig(plugins=points), {**BUILT_IN, **names}))


def best(cluster: Cluster, found: Verdicts, *requests: tuple[str, int]) -> int:
    pod = Pod("uid", "default", "pod", {}, RowKey(requests=requests))
    return found.best(Ask(pod, cluster.demand(pod.row)))[0]


def test_facts_that_changed_while_a_score_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(cluster, score=LikesByNamespaces)
    assert best(cluster, found) == 0
    cluster.set_namespace("one", {})

    monkeypatch.setattr(LikesByNamespaces, "fails", True)
    with pytest.raises(RuntimeError, match="once"):
        best(cluster, found)
    monkeypatch.undo()

    assert best(cluster, found) == 1


def test_a_demand_that_changed_while_nothing_could_be_prepared(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(cluster, filter=PreparesItself)
    assert best(cluster, found, (RESOURCE, 1)) == -1
    cluster.update_node(node(2, **{RESOURCE: 4}))

    monkeypatch.setattr(PreparesItself, "fails", True)
    with pytest.raises(RuntimeError, match="once"):
        best(cluster, found, (RESOURCE, 1))
    monkeypatch.undo()

    assert best(cluster, found, (RESOURCE, 1)) == 2
