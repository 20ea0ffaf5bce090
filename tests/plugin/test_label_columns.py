"""More label keys than are worth a column each."""

import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import fits
from bayplan.core.model.events import NodeSeen, PodSeen, Tick
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import AffinityTerm, Pod, PodTerms, RowKey
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.state import cluster as state

ROOM = {"cpu": 8000, "memory": 1 << 33, "pods": 20}


def node(name: str, zone: str) -> Node:
    return Node(name, f"uid-{name}", {"zone": zone, "rack": "r"}, ROOM)


def pod(name: str, labels: dict[str, str], terms: PodTerms | None = None, node: str = "") -> Pod:
    row = RowKey(requests=(("cpu", 100),))
    return Pod(name, "ns", name, labels, row, terms, node=node, scheduler="bayplan")


@pytest.mark.parametrize("first", ["zone", "other"])
def test_columns_go_between_questions_and_never_in_one(first: str) -> None:
    """Columns that come again have other codes, so one question must see the same ones."""
    engine = Engine()
    cluster, verdicts = engine.cluster, engine.verdicts["bayplan"]
    for each in (node("n0", "a"), node("n1", "b"), node("n0", "c")):
        engine.handle(NodeSeen(each), 0.0)
        cluster.column("zone")  # its codes are in the order of first sight from here on
    engine.handle(PodSeen(pod("there", {"app": "x"}, node="n0")), 0.0)
    for number in range(state.MOST_COLUMNS):
        cluster.column(f"key-{number}")
    same = Selector((Requirement("app", "In", ("x",)),))
    keys = dict.fromkeys((first, "zone", "other"))
    anti = tuple(AffinityTerm(same, key, ("ns",)) for key in keys)
    newcomer = pod("p", {"app": "y"}, PodTerms("ns", anti_affinity=anti))
    assert fits(verdicts, newcomer).feasible == ["n1"]
    engine.handle(Tick(), 0.0)
    assert len(cluster.labels.columns) <= 2
    assert fits(verdicts, newcomer).feasible == ["n1"]
