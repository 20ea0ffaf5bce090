"""The judge of gangs finds what is planted, and nothing else."""

from tests.real.apicheck import Change, Json
from tests.real.chaos.gangs import Member, Said, Span, Spell, in_part, torn, untrue

RUNS = [Span(0.0, 100.0)]
SAID = [Said(0.0, "g", 2)]
RACKS = {"x-0": "x", "y-0": "y"}


def seen(
    at: float, name: str, node: str = "", *, gone: bool = False, going: bool = False
) -> Change:
    member = Member(
        uid=name,
        name=name,
        version=1,
        node=node,
        ended=False,
        terminating=going,
        requests={},
        selector={},
        tolerates=frozenset(),
        waits_because="",
        group="g",
        at=at,
    )
    return Change(member, gone)


HALF = [seen(1, "a"), seen(1, "b"), seen(2, "a", "x-0")]


def test_a_gang_is_in_part_from_its_first_bind_to_its_last() -> None:
    assert list(in_part([*HALF, seen(5, "b", "x-0")], SAID, RUNS)) == [Spell(3, "g")]


def test_or_until_those_that_run_go_or_those_that_wait_do() -> None:
    for last in (seen(9, "a", "x-0", going=True), seen(9, "b", gone=True)):
        assert list(in_part([*HALF, last], SAID, RUNS)) == [Spell(7, "g")]


def test_time_without_a_scheduler_or_a_group_does_not_count() -> None:
    history = [*HALF, seen(9, "b", "x-0")]
    assert list(in_part(history, SAID, [Span(3, 5), Span(6, 20)])) == [Spell(2, "g"), Spell(3, "g")]
    assert list(in_part(history, [*SAID, Said(4, "g", 0)], RUNS)) == [Spell(2, "g")]
    assert not list(in_part(history, [Said(0.0, "g", 1)], RUNS))


def test_a_gang_that_still_is_in_part_counts_until_the_end() -> None:
    assert list(in_part([*HALF, seen(8, "c")], SAID, RUNS)) == [Spell(6, "g")]


def test_two_racks_are_found_unless_a_node_was_lost_or_its_pod_is_going() -> None:
    other = seen(5, "b", "y-0")
    assert list(torn([*HALF, other], RACKS, {}))
    assert not list(torn([*HALF, seen(5, "b", "x-0")], RACKS, {}))
    assert not list(torn([*HALF, other], RACKS, {"a": 4.0}))
    assert not list(torn([*HALF, seen(3, "a", "x-0", going=True), other], RACKS, {}))


def group(phase: str, scheduled: int, condition: str) -> Json:
    conditions = [{"type": "PodGroupScheduled", "status": condition}]
    status = {"phase": phase, "scheduled": scheduled, "running": scheduled}
    return {
        "metadata": {"name": "g"},
        "spec": {"minMember": 2},
        "status": {**status, "conditions": conditions},
    }


def pods(*nodes: str) -> list[Json]:
    return [
        {
            "metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
            "spec": {"nodeName": node} if node else {},
            "status": {"phase": "Running" if node else "Pending"},
        }
        for node in nodes
    ]


def test_a_status_is_true_or_not() -> None:
    assert not list(untrue([group("Running", 2, "True")], pods("a", "a")))
    assert not list(untrue([group("Pending", 1, "False")], pods("a")))
    assert not list(untrue([group("Scheduling", 0, "False")], pods("", "")))
    for wrong in (group("Scheduling", 2, "True"), group("Running", 1, "True")):
        assert list(untrue([wrong], pods("a", "a")))
    assert list(untrue([group("Scheduling", 1, "False")], pods("a", "")))  # it is in part
