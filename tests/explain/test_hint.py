"""One hint from what a refusal knows, without another look at the nodes."""

from bayplan.core.engine.advice import hint
from bayplan.core.model.effects import Refuse
from bayplan.core.model.verdicts import Refusal, Tally
from bayplan.testing import World
from bayplan.testing.world import GPU, tainted
from tests.scheduler.test_writer import Rig, pod, run


def hinted(counts: dict[str, int]) -> str:
    tallies = {text: Tally(count, ()) for text, count in counts.items()}
    return hint(Refusal("", tallies, frozenset(), 1))


def test_nodes_that_got_furthest_through_the_filters_are_spoken_of() -> None:
    taint, lack = "node(s) had untolerated taint(s)", f"Insufficient {GPU}"
    words = f"have too little {GPU} free: ask for less, or wait until a pod there ends"
    assert hinted({taint: 400, lack: 12}) == f"12 nodes {words}"
    assert hinted({lack: 1}) == f"1 node {words.replace('have', 'has', 1)}"
    assert hinted({taint: 400}) == "400 nodes would need a toleration"


def test_of_several_lacks_the_one_of_most_nodes() -> None:
    assert hinted({"Insufficient cpu": 3, "Insufficient memory": 5}).startswith("5 nodes have too")


def test_nothing_comes_to_mind() -> None:
    assert hinted({"node(s) refused a pod for cpu recently": 4}) == ""
    assert hinted({"members of the gang are missing": 0}) == ""
    assert hinted({}) == ""


def test_a_refusal_of_the_engine() -> None:
    world = World()
    world.node("a", 1, taints=tainted("x"))
    world.submit("new", 1)
    (group,) = world.engine.waiting.groups.values()
    assert group.refusal is not None
    assert hint(group.refusal) == "1 node would need a toleration"


def test_the_event_has_the_hint_and_the_condition_has_not() -> None:
    sentence = "0/5 nodes are available: 5 Insufficient cpu."
    why = Refusal(sentence, {"Insufficient cpu": Tally(5, ())}, frozenset(), 1)

    async def told(rig: Rig, nominated: str | None) -> tuple[str, str]:
        rig.writer.refuse(Refuse(pod("p"), why, nominated))
        await rig.settle()
        condition, event = rig.api.sent[-2:]
        (patched,) = condition.body["status"]["conditions"]
        return patched["message"], event.body["note"]

    async def waits(rig: Rig) -> None:
        words = "5 nodes have too little cpu free: ask for less, or wait until a pod there ends"
        assert await told(rig, None) == (sentence, f"{sentence} | {words}")

    async def others_go_for_it(rig: Rig) -> None:
        assert await told(rig, "n1") == (sentence, sentence)

    run(waits)
    run(others_go_for_it)
