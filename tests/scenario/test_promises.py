"""Places that elastic jobs were promised are theirs until their workers come."""

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.engine import gangs
from bayplan.core.engine.promises import Promises
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Device
from bayplan.core.model.grants import Confirmed, Grant, elastic_key
from bayplan.core.model.groups import Patience
from bayplan.core.model.pods import AffinityTerm, Gang, HostPort, Lifecycle, Worker
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.model.utilisation import DeviceUse, NodeUse, PodUse
from bayplan.core.state import laws
from bayplan.testing.world import HOSTNAME, World, cards, pod, tainted, terms
from tests.utilsched.clusters import carded
from tests.utilsched.clusters import world as closing

A, B = (elastic_key("ElasticJob", "default", name) for name in "ab")


def grant(key: str, places: int, generation: int = 1, gpus: int = 1, **facts: Any) -> Grant:
    given = ("confirmed", "wrong", "job")
    said: dict[str, Any] = {name: facts.pop(name) for name in given if name in facts}
    said |= {"uid": said.pop("job")} if "job" in said else {}
    shape = pod("", gpus, uid=key, worker=Worker(key), **facts)
    return Grant(key, generation, places, shape, **said)


def grants(world: World, *given: Grant) -> None:
    """They are seen at once; nothing is decided in between."""
    for each in given:
        world.engine.handle(on.GrantSeen(each), world.now)
    world.tick()


def confirmed(world: World, key: str) -> Confirmed:
    """What was said of the grant last."""
    said = [each for each in world.effects if isinstance(each, do.Confirm) and each.job == key]
    assert said, f"nothing was said of {key}"
    assert not laws.broken(world.engine.cluster)
    return said[-1].confirmed


def worker(world: World, key: str, name: str, gpus: int = 1, job: str = "", **facts: Any) -> None:
    world.submit(name, gpus, worker=Worker(key, job), **facts)


def test_a_grant_is_confirmed_once_its_places_are_held() -> None:
    world = World(n=4)
    grants(world, grant(A, 3))
    assert confirmed(world, A) == Confirmed(1, 3, (("n", 3),))
    world.submit("other", pods=2, gpus=1)
    assert world.running() == {"other-0": "n"}
    assert "Insufficient nvidia.com/gpu" in world.waiting()["other-1"]


def test_workers_take_the_places_that_were_promised() -> None:
    world = World(n=3)
    grants(world, grant(A, 3))
    world.submit("other", gpus=1)
    worker(world, A, "w0")
    worker(world, A, "w1")
    assert world.running() == {"w0": "n", "w1": "n"}
    worker(world, A, "w2")
    assert set(world.running()) == {"w0", "w1", "w2"}
    worker(world, A, "w3")
    assert set(world.waiting()) == {"other", "w3"}
    assert len([each for each in world.effects if isinstance(each, do.Confirm)]) == 1


def test_not_even_a_more_important_pod_gets_a_promised_place() -> None:
    world = World(n=2)
    grants(world, grant(A, 2))
    world.submit("vip", gpus=1, priority=1_000_000)
    assert "vip" in world.waiting()
    worker(world, A, "w0")
    worker(world, A, "w1")
    assert set(world.running()) == {"w0", "w1"}


def test_what_one_job_gives_back_goes_to_the_other_before_anybody_else() -> None:
    world = World(n=4)
    for at in range(4):
        world.see(pod(f"w{at}", 1, node="n", worker=Worker(A)))
    grants(world, grant(A, 4))
    world.submit("other", pods=3, gpus=1)
    grants(world, grant(A, 4, generation=2))  # two workers, and two places to be passed on
    for at in (2, 3):
        world.finish(f"w{at}")
    assert confirmed(world, A) == Confirmed(2, 4)  # said while both were there
    assert world.running() == {}
    grants(world, grant(B, 2))
    assert confirmed(world, B).places == 0
    grants(world, grant(A, 2, generation=3))
    assert confirmed(world, B) == Confirmed(1, 2, (("n", 2),))
    worker(world, B, "v0")
    worker(world, B, "v1")
    assert set(world.running()) == {"v0", "v1"}


def test_a_short_grant_says_how_many_have_a_place_and_why_not_more() -> None:
    world = World(n=4)
    world.see(pod("other", 1, node="n"))
    grants(world, grant(A, 5))
    said = confirmed(world, A)
    assert (said.generation, said.places) == (1, 3)
    assert said.why == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    world.finish("other")
    assert confirmed(world, A).places == 4
    world.node("m", 1)
    assert confirmed(world, A) == Confirmed(1, 5, (("m", 1), ("n", 4)))


def test_places_that_went_with_their_node_are_found_elsewhere_or_told() -> None:
    world = World(n=2, m=2)
    world.see(pod("other", 1, node="m"))
    grants(world, grant(A, 2))
    assert confirmed(world, A).kept == (("n", 2),)
    world.tell(on.NodeGone("n"))
    said = confirmed(world, A)
    assert (said.places, said.kept) == (1, (("m", 1),))
    assert said.why


def test_a_worker_that_is_gone_leaves_its_place_to_the_next() -> None:
    world = World(n=1)
    grants(world, grant(A, 1))
    worker(world, A, "w0")
    world.submit("other", gpus=1)
    world.finish("w0")
    assert world.running() == {}
    worker(world, A, "w0-again")
    assert world.running() == {"w0-again": "n"}


def test_a_bind_that_fails_keeps_the_place() -> None:
    world = World(n=1, binds="hold")
    grants(world, grant(A, 1))
    worker(world, A, "w0")
    world.submit("other", gpus=1)
    world.answer("w0", ok=False)
    world.wait(5)
    assert world.running() == {"w0": "n"}


def test_a_failed_bind_of_a_gangs_worker_leaves_its_place_to_nobody_more_important() -> None:
    gang = Gang("default/a", 1)
    world = World(n=1, binds="hold")
    grants(world, grant(A, 1, gang=gang))
    worker(world, A, "w0", gang=gang)
    world.answer("w0", ok=False)
    world.submit("vip", gpus=1, priority=1000)
    world.wait(5)
    assert world.running() == {"w0": "n"}


def test_a_job_that_is_deleted_frees_its_places() -> None:
    world = World(n=2)
    grants(world, grant(A, 2))
    world.submit("other", pods=2, gpus=1)
    world.tell(on.GrantGone(A))
    world.wait(2)
    assert set(world.running()) == {"other-0", "other-1"}


def test_jobs_of_other_schedulers_are_left_to_them() -> None:
    world = World(n=2)
    grants(world, grant(A, 2, scheduler="someone-else"))
    assert world.effects == []
    world.submit("other", gpus=2)
    assert world.running() == {"other": "n"}


def test_a_job_that_cannot_be_understood_has_no_place() -> None:
    world = World(n=2)
    grants(world, grant(A, 2, wrong="ElasticJob default/a: spec.template: it is missing"))
    assert confirmed(world, A) == Confirmed(
        1, 0, why="ElasticJob default/a: spec.template: it is missing"
    )


def test_after_a_restart_the_places_are_where_they_were() -> None:
    world = World(n=2, m=2, k=2)
    world.submit("first", gpus=1, node_selector=(("kubernetes.io/hostname", "k"),))
    said = Confirmed(3, 3, (("k", 1), ("m", 2)))
    grants(world, grant(A, 3, generation=3, confirmed=said))
    holds = world.engine.cluster.holds.rows.values()
    assert sorted(map(world.engine.cluster.name, holds)) == ["k", "m", "m"]
    assert not [each for each in world.effects if isinstance(each, do.Confirm)]


def test_whoever_was_told_of_places_has_them_before_a_new_grant() -> None:
    world = World(n=3)
    old = grant(A, 3, confirmed=Confirmed(1, 3, (("n", 3),)))
    new = grant(B, 3, created_s=-5.0)
    grants(world, new, old)
    assert confirmed(world, B).places == 0
    assert len(world.engine.promises.of(A)) == 3


def test_what_the_status_says_wrongly_is_said_again() -> None:
    world = World(n=2)
    grants(world, grant(A, 2))
    grants(world, grant(A, 2, confirmed=Confirmed(1, 7)))
    said = [each for each in world.effects if isinstance(each, do.Confirm)]
    assert [each.confirmed.places for each in said] == [2, 2]


def test_news_from_before_a_grant_do_not_undo_it() -> None:
    world = World(n=4)
    grants(world, grant(A, 4, generation=5), grant(A, 2, generation=4))
    assert len(world.engine.promises.of(A)) == 4


def test_what_could_not_be_written_is_said_again() -> None:
    world = World(n=2)
    grants(world, grant(A, 2))
    world.tell(on.ConfirmFailed(A))
    world.tell(on.ConfirmFailed(B))
    said = [each for each in world.effects if isinstance(each, do.Confirm)]
    assert said == [do.Confirm(A, Confirmed(1, 2, (("n", 2),)))] * 2


def test_a_gang_of_workers_takes_its_promised_places_together() -> None:
    gang = Gang("default/a", 3)
    world = World(n=2, m=2)
    grants(world, grant(A, 4, gang=gang))
    world.submit("other", gpus=1)
    worker(world, A, "w0", gang=gang)
    worker(world, A, "w1", gang=gang)
    assert world.running() == {}
    worker(world, A, "w2", gang=gang)
    assert set(world.running()) == {"w0", "w1", "w2"}
    worker(world, A, "w3", gang=gang)
    assert set(world.running()) == {"w0", "w1", "w2", "w3"}
    assert "other" in world.waiting()


@pytest.mark.parametrize("priority", [0, 50])
def test_a_gang_of_workers_that_waits_until_another_has_gone_keeps_its_places_against_everybody(
    priority: int,
) -> None:
    """As long as that one is there, both its place and that of whom it goes for are taken."""
    gang = Gang("default/a", 3)
    world = World(n=4)
    grants(world, grant(B, 1))
    worker(world, B, "b")
    grants(world, grant(A, 3, gang=gang, priority=priority))
    world.submit("vip", gpus=1, priority=100)
    for name in ("w0", "w1", "w2"):
        worker(world, A, name, gang=gang, priority=priority)
    world.submit("other", gpus=2, priority=100)
    assert world.running() == {"b": "n"}
    world.finish("b")
    world.wait(10)
    assert set(world.running()) == {"vip", "w0", "w1", "w2"}
    assert confirmed(world, A).places == 3


def test_devices_with_ids_are_held_one_by_one() -> None:
    world = World()
    world.node("n", **cards(80_000, 80_000, 80_000, name="n"))
    grants(world, grant(A, 2))
    world.submit("other", gpus=1)
    worker(world, A, "w0")
    worker(world, A, "w1")
    given = [*world.devices["other"], *world.devices["w0"], *world.devices["w1"]]
    assert sorted(given) == ["GPU-n0", "GPU-n1", "GPU-n2"]


def test_a_place_that_no_longer_takes_the_worker_does_not_keep_it_from_another() -> None:
    world = World(n=1, m=1)
    grants(world, grant(A, 1))
    (held,) = [world.engine.cluster.name(row) for row in world.engine.cluster.holds.rows.values()]
    world.node(held, 1, unschedulable=True)
    worker(world, A, "w0")
    assert set(world.running().values()) == {"n", "m"} - {held}


def test_a_grant_that_shrinks_gives_up_what_it_has_not_used() -> None:
    world = World(n=4)
    grants(world, grant(A, 4))
    worker(world, A, "w0")
    world.submit("other", pods=3, gpus=1)
    grants(world, grant(A, 2, generation=2))
    assert len([name for name in world.running() if name.startswith("other")]) == 2
    assert confirmed(world, A).places == 2


def test_a_pod_with_another_template_still_counts_as_a_worker() -> None:
    world = World(n=3)
    grants(world, grant(A, 3))
    worker(world, A, "big", gpus=2)  # no single place takes it
    assert "big" in world.waiting()
    seen = replace(pod("small", 1, worker=Worker(A)), labels={"role": "odd"})
    world.see(seen)
    assert world.running() == {"small": "n"}


def test_after_a_restart_nobody_takes_a_place_whose_node_is_told() -> None:
    """a was told of two, and says where one is; b has the only node with two together."""
    world = World(n=2, m=1)
    of_a = grant(A, 2, confirmed=Confirmed(1, 2, (("m", 1),)))
    of_b = grant(B, 1, gpus=2, confirmed=Confirmed(1, 1, (("n", 1),)))
    grants(world, of_a, of_b)
    assert confirmed(world, A).places == 1
    assert world.engine.promises.told[B] == Confirmed(1, 1, (("n", 1),))


def test_the_node_of_a_worker_that_is_on_its_way_is_told() -> None:
    world = World(n=2, binds="hold")
    grants(world, grant(A, 2))
    worker(world, A, "w0")
    grants(world, grant(A, 1, generation=2))
    assert confirmed(world, A) == Confirmed(2, 1, (("n", 1),))
    world.answer("w0")
    grants(world, grant(A, 1, generation=3))
    assert confirmed(world, A) == Confirmed(3, 1, ())


def settled(world: World, *told: on.Event) -> int:
    """How often the grants were gone through for these events."""
    settle, count = world.engine.promises.settle, 0

    def counted() -> tuple[list[do.Effect], bool]:
        nonlocal count
        count += 1
        return settle()

    world.engine.promises.settle = counted  # type: ignore[method-assign]
    for event in told:
        world.tell(event)
    world.engine.promises.settle = settle  # type: ignore[method-assign]
    return count


def test_what_is_measured_moves_no_promises() -> None:
    """Profilers tell of every node and every pod, twice a minute; a grant that is short costs a
    search each time that it is gone through."""
    world = World(n=2)
    world.submit("p", gpus=1)
    grants(world, grant(A, 3))
    (resident,) = world.engine.cluster.pods.values()
    seen = replace(resident.pod, node="n", use=PodUse(5))
    world.tell(on.PodSeen(seen))
    use = NodeUse(devices=(DeviceUse(0, 50),))
    assert settled(world, on.UseSeen("n", use)) == 0
    assert settled(world, on.PodSeen(replace(seen, use=PodUse(6)))) == 0
    assert settled(world, on.PodSeen(replace(seen, labels={"a": "b"}))) == 1


def test_a_node_that_measures_opened_again_takes_promised_places() -> None:
    strange = NodeUse(devices=(DeviceUse(0, used_mib=4000, free_mib=8000),))
    world = closing(carded("n", strange), closeAbove=1024)
    grants(world, grant(A, 1))
    assert confirmed(world, A).places == 0
    world.tell(on.UseSeen("n", None))


def test_places_for_workers_of_another_shape_are_sought_anew() -> None:
    world = World(n=4)
    grants(world, grant(A, 2))
    grants(world, grant(A, 2, gpus=2))
    world.submit("other", gpus=1)
    worker(world, A, "w0", gpus=2)
    worker(world, A, "w1", gpus=2)
    assert set(world.running()) == {"w0", "w1"}
    grants(world, grant(A, 3, generation=2, gpus=2))
    assert confirmed(world, A).places == 2


def test_a_job_that_can_no_longer_be_understood_gives_its_places_back() -> None:
    world = World(n=2)
    grants(world, grant(A, 2))
    wrong = Grant(A, 1, 2, pod("", uid=A), wrong="its template is no template")
    grants(world, wrong)
    assert confirmed(world, A) == Confirmed(1, 0, (), "its template is no template")
    world.submit("other", gpus=2)
    assert world.running() == {"other": "n"}


def test_a_status_that_was_emptied_is_told_which_generation_was_the_last() -> None:
    """So that the next grant is a newer one, and is heard."""
    world = World(n=4)
    grants(world, grant(A, 2, generation=5))
    world.effects.clear()
    grants(world, grant(A, 0, generation=0))
    assert confirmed(world, A) == Confirmed(5, 2, (("n", 2),))


@pytest.mark.parametrize(
    "change", [{"unschedulable": True}, {"taints": tainted("node.kubernetes.io/not-ready")}]
)
def test_places_on_a_node_that_takes_nobody_are_sought_elsewhere(change: dict[str, Any]) -> None:
    world = World(n=2, m=1)
    grants(world, grant(A, 2))
    assert confirmed(world, A).kept == (("n", 2),)
    world.node("n", 2, **change)
    said = confirmed(world, A)
    assert (said.places, said.kept) == (1, (("m", 1),))
    assert said.why
    world.node("n", 2)
    assert confirmed(world, A) == Confirmed(1, 2, (("m", 1), ("n", 1)))


def test_a_node_with_less_than_it_had_keeps_the_places_that_it_has_room_for() -> None:
    world = World(n=4)
    grants(world, grant(A, 2), grant(B, 2))
    world.node("n", 3)
    assert (confirmed(world, A).places, confirmed(world, B).places) == (2, 1)
    world.tell(on.PodUnreadable("odd", "n"))
    assert (confirmed(world, A).places, confirmed(world, B).places) == (0, 0)


def test_a_device_that_is_no_more_is_held_no_more() -> None:
    world = World()
    world.node("n", **cards(80_000, 80_000, name="n"))
    grants(world, grant(A, 1))
    worn = (Device("GPU-n0", 0, memory_mib=80_000, healthy=False), Device("GPU-n1", 1, 80_000))
    world.node("n", **cards(80_000, 80_000, name="n", devices=worn))
    (place,) = world.engine.cluster.holds.on(world.engine.cluster.rows["n"])
    assert place.held is not None
    assert [part.id for part in place.held.parts] == ["GPU-n1"]


def places_tried(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many workers places are sought, each time that they are."""
    tried: list[int] = []
    place = gangs.place

    def counted(verdicts: Any, pods: Any, *args: Any, **kwargs: Any) -> Any:
        tried.append(len(pods))
        return place(verdicts, pods, *args, **kwargs)

    monkeypatch.setattr(gangs, "place", counted)
    return tried


@pytest.mark.parametrize("gang", [None, Gang("default/a", 2)])
def test_grants_that_find_no_room_are_tried_again_only_when_there_may_be_some(
    gang: Gang | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(n=8)
    tried = places_tried(world, monkeypatch)
    keys = [elastic_key("ElasticJob", "default", f"j{at}") for at in range(20)]
    grants(world, *(grant(key, 2, gpus=9, gang=gang) for key in keys))
    assert len(tried) == 1  # what one was refused, the others are
    for at in range(8):
        world.see(pod(f"p{at}", 1, node="n"))
    assert len(tried) == 1
    world.finish("p0")
    assert len(tried) == 2
    world.node("m", 9)
    assert sum(len(world.engine.promises.of(key)) for key in keys) == 1


def test_only_grants_with_news_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(n=40)
    keys = [elastic_key("ElasticJob", "default", f"j{at}") for at in range(10)]
    grants(world, *(grant(key, 4) for key in keys))
    said: list[str] = []
    say = Promises._say

    def noted(promises: Promises, each: Grant, *args: Any) -> Any:
        said.append(each.key)
        return say(promises, each, *args)

    monkeypatch.setattr(Promises, "_say", noted)
    world.see(pod("other", 0, node="n"))
    assert said == []
    worker(world, keys[3], "w0")
    world.finish("w0")
    assert set(said) == {keys[3]}


def test_what_is_said_is_said_of_one_job_not_of_its_name() -> None:
    world = World(n=4)
    grants(world, grant(A, 2, generation=1, job="first"))
    grants(world, grant(A, 2, generation=1, job="second"))
    said = [each for each in world.effects if isinstance(each, do.Confirm)]
    assert [each.uid for each in said] == ["first", "second"]


ALIKE = Selector((Requirement("app", "In", ("x",)),))
ALONE = terms(anti_affinity=(AffinityTerm(ALIKE, HOSTNAME, ("default",)),))


@pytest.mark.parametrize(
    "facts",
    [{"ports": (HostPort("TCP", 80, "0.0.0.0"),)}, {"labels": {"app": "x"}, "terms": ALONE}],
    ids=["ports", "anti-affinity"],
)
def test_places_of_workers_that_keep_apart_are_apart_whenever_they_are_found(
    facts: dict[str, Any],
) -> None:
    world = World(n=4)
    grants(world, grant(A, 3, **facts))
    world.see(pod("other", 1, node="n"))
    world.finish("other")
    assert confirmed(world, A).kept == (("n", 1),)
    world.node("m", 4)
    assert confirmed(world, A).kept == (("m", 1), ("n", 1))


def test_places_of_workers_that_belong_together_are_together_whenever_they_are_found() -> None:
    world = World(n=1)
    grants(world, grant(A, 2, gang=Gang("default/a", 1, within=HOSTNAME)))
    world.node("m", 1)
    assert confirmed(world, A).kept == (("n", 1),)
    world.node("n", 2)
    assert confirmed(world, A).kept == (("n", 2),)


def test_a_node_that_a_kubelet_made_doubtful_keeps_no_places_until_it_is_trusted_again() -> None:
    world = World(n=1)
    grants(world, grant(A, 1))
    world.tell(on.KubeletRefused("n", ("nvidia.com/gpu",)))
    world.tick()
    assert confirmed(world, A).places == 0
    world.wait(3600)
    assert confirmed(world, A).places == 1


@pytest.mark.parametrize(
    "facts",
    [{"ports": (HostPort("TCP", 80, "0.0.0.0"),)}, {"labels": {"app": "x"}, "terms": ALONE}],
    ids=["ports", "anti-affinity"],
)
def test_a_place_that_somebody_has_spoilt_is_told(facts: dict[str, Any]) -> None:
    world = World(n=4)
    grants(world, grant(A, 1, **facts))
    assert confirmed(world, A).places == 1
    world.see(pod("stranger", node="n", ports=facts.get("ports", ()), labels={"app": "x"}))
    assert confirmed(world, A).places == 0
    world.finish("stranger")
    assert confirmed(world, A).places == 1


def test_workers_of_an_earlier_job_of_the_name_have_none_of_its_places() -> None:
    world = World(n=6)
    for at in range(3):
        world.see(pod(f"old{at}", 1, node="n", worker=Worker(A, "old"), terminating=True))
    grants(world, grant(A, 3, job="new"))
    assert confirmed(world, A) == Confirmed(1, 3, (("n", 3),))
    worker(world, A, "late", job="old")
    world.submit("other", gpus=1)
    assert set(world.waiting()) == {"late", "other"}
    for name, job in (("w0", "new"), ("w1", "new"), ("w2", "")):  # one does not say whose it is
        worker(world, A, name, job=job)
    assert {"w0", "w1", "w2"} <= set(world.running())


def test_a_worker_that_gets_another_owner_counts_for_that() -> None:
    world = World(n=2)
    held = pod("w", 1, node="n", worker=Worker(A, "old"))
    world.see(held)
    grants(world, grant(A, 2, job="new"))
    assert confirmed(world, A).places == 1
    world.see(replace(held, worker=Worker(A, "new")))
    world.tick()
    assert confirmed(world, A).places == 2


def awaiting(world: World) -> None:
    """A worker waits for another's end, and then for its place; a more important pod comes."""
    assert "uid-w" in world.engine.nominations
    world.submit("vip", gpus=1, priority=100)
    world.finish("old")
    world.wait(30)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([on.GrantGone(A)], ""),
        ([on.GrantSeen(grant(A, 0, generation=2, priority=10))], ""),
        ([], "no such thing"),
    ],
    ids=["gone", "shrunk", "wrong"],
)
def test_a_place_that_is_promised_no_more_is_as_anybodys(
    events: list[on.Event], wrong: str
) -> None:
    world = World(n=1)
    world.see(pod("old", 1, node="n"))
    grants(world, grant(A, 1, priority=10, wrong=wrong))
    worker(world, A, "w", priority=10)
    for event in events:
        world.tell(event)
    awaiting(world)
    assert set(world.running()) == {"vip"}


def test_a_place_is_kept_against_everybody_also_when_the_grant_comes_late() -> None:
    world = World(n=1)
    world.see(pod("old", 1, node="n"))
    worker(world, A, "w", priority=10)
    grants(world, grant(A, 1, priority=10))
    assert confirmed(world, A).places == 1
    awaiting(world)
    assert set(world.running()) == {"w"}


def test_a_nominated_worker_keeps_its_place_after_a_restart() -> None:
    world = World(n=1)
    going = Lifecycle(preempted=True)
    world.see(pod("old", 1, node="n", terminating=True, lifecycle=going))
    grants(world, grant(A, 1, priority=10))
    world.see(pod("w", 1, worker=Worker(A), priority=10, nominated="n"))
    awaiting(world)
    assert set(world.running()) == {"w"}


def test_places_that_are_kept_until_others_end_are_told_and_kept() -> None:
    gang = Gang("default/a", 2)
    world = World(n=2, patience=Patience(reserve_s=5))
    ends = Lifecycle(run_s=1000.0)
    for name in ("o0", "o1"):
        times: dict[str, Any] = {"created_s": 50.0, "started_s": 50.0}
        world.see(pod(name, 1, node="n", priority=10, lifecycle=ends, **times))
    grants(world, grant(A, 2, priority=10, gang=gang))
    for name in ("w0", "w1"):
        waits = pod(name, 1, created_s=1.0, worker=Worker(A), priority=10, gang=gang)
        world.engine.handle(on.PodSeen(waits), world.now)
    world.tick()
    for seconds in (6, 20, 20):
        world.wait(seconds)
    told = confirmed(world, A).places
    world.submit("vip", gpus=1, priority=100)
    assert world.engine.nominations.owners
    assert (told, confirmed(world, A).places) == (2, 2)


def test_the_end_of_a_job_that_had_nothing_is_no_news() -> None:
    made = World(a=1)
    made.engine.handle(on.GrantGone("ElasticJob red/a"), 0.0)
    assert not made.engine.promises.is_due


def test_a_place_whose_job_is_gone_is_as_anybodys_also_when_a_node_is_forgiven_just_then() -> None:
    world = World(n=1)
    engine = world.engine
    world.see(pod("low", 1, node="n", priority=0))
    grants(world, grant(A, 1, priority=100))
    world.see(pod("w", 1, priority=100, worker=Worker(A)))
    world.tick()
    engine.handle(on.KubeletRefused("n", ("nvidia.com/gpu",)), world.now)
    world.tick()
    forgiven = engine.cluster.distrusted.next_end
    engine.handle(on.GrantGone(A), forgiven)
    engine.handle(on.Tick(), forgiven)
    (held,) = engine.cluster.holds.pods[engine.cluster.rows["n"]].values()
    assert held.priority == 100


def test_what_is_left_of_a_place_that_a_smaller_worker_took_is_anybodys() -> None:
    world = World(n=3)
    grants(world, grant(A, 1, gpus=3))
    world.submit("other", gpus=2)
    assert list(world.waiting()) == ["other"]
    world.see(pod("w", 1, worker=Worker(A)))
    world.wait(2)
    assert world.running().keys() == {"w", "other"}


def test_what_is_left_of_places_that_a_gang_of_smaller_workers_took_is_anybodys() -> None:
    world = World(n=4)
    gang = Gang("default/a", 2)
    grants(world, grant(A, 2, gpus=2, gang=gang))
    world.submit("other", gpus=2)
    assert list(world.waiting()) == ["other"]
    for name in ("w-0", "w-1"):
        world.engine.handle(on.PodSeen(pod(name, 1, worker=Worker(A), gang=gang)), world.now)
    world.wait(2)
    assert world.running().keys() == {"w-0", "w-1", "other"}


@pytest.mark.parametrize("changed", [{"gpus": 5}, {"gpus": 3, "wrong": "no such thing"}])
def test_places_of_a_job_that_has_no_use_for_them_any_more_are_anybodys(
    changed: dict[str, Any],
) -> None:
    world = World(n=3)
    grants(world, grant(A, 1, gpus=3))
    world.submit("other", gpus=2)
    assert list(world.waiting()) == ["other"]
    grants(world, grant(A, 1, generation=2, **changed))
    world.wait(2)
    assert world.running().keys() == {"other"}
