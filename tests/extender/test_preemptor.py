"""Pods go for one that kube-scheduler finds no place for: who, when, and what is kept for it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bayplan.cli.main import main
from bayplan.core.model.effects import Preempt
from bayplan.core.state.laws import picture
from bayplan.extender import preemptor
from bayplan.kube.client import BUDGETS, EVENTS, NODES, PODS
from bayplan.kube.transport import MERGE_PATCH, Response
from bayplan.local.virtual import run
from bayplan.scheduler.config import Configuration, ExtenderSettings, JournalSettings
from bayplan.scheduler.removing import LEFT_ALONE_S
from tests.conftest import differences
from tests.extender.decisions import PRIORITIES, Json, Send, World, node, play, pod
from tests.scheduler.scripted import refused

QUIET = Configuration(check_live_every=0)


async def filled(world: World, *sizes: int, there: str = "n") -> list[Json]:
    """Pods without priority that have these devices, called low0, low1 and so on."""
    found = []
    for size in sizes:
        made = await world.add(pod(f"low{len(world.engine.cluster.pods)}", size))
        assert await world.place(made, there) == ""
        found.append(made)
    await world.clock.sleep(0.1)
    return found


async def urgent(world: World, size: int = 6, name: str = "urgent", **more: Any) -> Json:
    classes = msgspec.json.decode(await world.user.request("GET", PRIORITIES.path()))["items"]
    if "p1" not in {each["metadata"]["name"] for each in classes}:
        await world.add_priorities(1, 2)
        never = {"metadata": {"name": "never"}, "value": 1, "preemptionPolicy": "Never"}
        await world.user.request("POST", PRIORITIES.path(), body=msgspec.json.encode(never))
    if "priorityClassName" not in more:
        more.setdefault("priority", 1)
    return await world.add(pod(name, size, **more))


async def refuse(world: World, made: Json, *names: str, times: int = 2) -> None:
    """As kube-scheduler asks again after its back-off; it is told the same each time."""
    for at in range(times):
        await world.clock.sleep(1.0 if at else 0.0)
        found = await world.filter(made, *(names or ("n",)))
        assert (found.node_names, found.error) == ([], "")
        assert found.failed_nodes.keys() == set(names or ("n",))


async def leaving(world: World) -> list[str]:
    """The pods that were told to go."""
    await world.clock.sleep(0.1)
    found = [each["metadata"] for each in world.api.store.values("pods")]
    return sorted(each["name"] for each in found if each.get("deletionTimestamp"))


def is_delete(method: str, path: str) -> bool:
    return method == "DELETE" and "/pods/" in path


# ---- the whole story


def test_others_go_and_the_devices_are_kept_until_the_pod_is_bound() -> None:
    async def story(world: World) -> None:
        await filled(world, 2, 4)
        made = await urgent(world)
        await refuse(world, made, times=1)
        assert await leaving(world) == []  # kube-scheduler has its own chance first
        await refuse(world, made, times=1)
        await world.clock.sleep(1.0)
        await refuse(world, made, times=1)

        assert await leaving(world) == ["low0", "low1"]
        victim = await world.get("low0")
        (mark,) = [c for c in victim["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        assert (mark["reason"], mark["status"]) == ("PreemptionByScheduler", "True")
        other = await urgent(world, 1, "other")
        await world.delete("low0")
        await refuse(world, other, times=3)  # what is free is not for everybody
        await refuse(world, made)
        assert "does not fit" in await world.bind(other, "n")
        await world.delete("low1")
        await refuse(world, other, times=1)
        assert await world.place(made, "n") == ""
        assert world.ids_of("urgent") == "0,1,2,3,4,5"
        await world.clock.sleep(0.1)
        assert not world.engine.nominations.owners
        assert not world.engine.nominations.doomed
        assert world.binds.done["delete"] == 2
        answers = world.service.answers
        assert answers.preemptor is not None
        assert answers.preemptor.counts["found"] == 1
        said = world.service.metrics.expose().decode()
        assert 'bayplan_extender_preemptions_total{result="found"} 1.0' in said
        assert 'bayplan_writes_total{kind="delete"} 2.0' in said
        assert answers.preemptor.counts["no victims"] > 0  # for the other one
        attempts = sum(answers.preemptor.counts.values())
        assert f"scheduler_preemption_attempts_total {attempts}.0" in said

    play(story, node("n"))


def test_the_event_of_a_victim_is_written() -> None:
    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made)
        await world.until(lambda: world.binds.done["event"])
        body = await world.user.request("GET", EVENTS.path("default"))
        (event,) = msgspec.json.decode(body)["items"]
        assert event["reason"] == "Preempted"
        assert event["regarding"]["name"] == "low0"
        assert event["related"]["name"] == "urgent"
        assert event["note"] == f"Preempted by pod {made['metadata']['uid']} on node n"
        assert event["reportingController"] == "default-scheduler"

    play(story, node("n"))


def test_only_as_many_go_as_have_to_and_the_least_important() -> None:
    async def story(world: World) -> None:
        await filled(world, 2)
        await urgent(world, 2, "mid")
        assert await world.place(await world.get("mid"), "n") == ""
        await filled(world, 2)
        await filled(world, 6, there="m")
        made = await urgent(world, 2, "most", priority=2)
        await refuse(world, made, "n", "m")
        assert len(await leaving(world)) == 1
        assert not {"mid", "low3"} & set(await leaving(world))

    play(story, node("n"), node("m"))


def test_only_on_nodes_that_were_asked_about() -> None:
    """On the others, kube-scheduler says, the pod does not fit for reasons of its own."""

    async def story(world: World) -> None:
        await filled(world, 6)
        await filled(world, 3, 3, there="m")
        made = await urgent(world, 1)
        await refuse(world, made, "m", "new")
        (name,) = await leaving(world)
        assert name in ("low1", "low2")

    play(story, node("n"), node("m"))


def test_budgets_are_looked_at() -> None:
    async def story(world: World) -> None:
        guarded = {"metadata": {"labels": {"app": "guarded"}}}
        for name in ("a", "b"):
            made = await world.add(pod(name, 6, **(guarded if name == "a" else {})))
            assert await world.place(made, "n" if name == "a" else "m") == ""
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
        budget = {"metadata": {"name": "b"}, "spec": spec}
        path = BUDGETS.path("default")
        await world.user.request("POST", path, body=msgspec.json.encode(budget))
        await world.clock.sleep(0.1)
        await refuse(world, await urgent(world), "n", "m")
        assert await leaving(world) == ["b"]

    play(story, node("n"), node("m"))


# ---- nothing happens


@pytest.mark.parametrize("why", ["never", "equal", "off", "soon", "nominated", "hopeless"])
def test_nobody_goes(why: str) -> None:
    async def story(world: World) -> None:
        await filled(world, 4)
        if why != "soon":
            await filled(world, 2)
        more: dict[str, Any] = {}
        if why == "never":
            more["priorityClassName"] = "never"
        if why == "equal":
            more["priority"] = 0
        made = await urgent(world, 7 if why == "hopeless" else 4, **more)
        if why == "soon":
            await world.filter(await world.add(pod("expected", 2)), "n")
            made = await urgent(world, 2, "small")
        if why == "nominated":
            body = b'{"status":{"nominatedNodeName":"n"}}'
            path = PODS.path("default", "urgent", "status")
            await world.user.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            made = await world.get("urgent")
        for _ in range(5):
            await world.filter(made, "n")
            await world.clock.sleep(0.3 if why == "soon" else 2.0)
        assert await leaving(world) == []
        assert not world.engine.nominations.owners

    settings = ExtenderSettings(preemption=why != "off")
    play(story, node("n"), config=replace(QUIET, extender=settings))


def test_a_nomination_that_only_the_watch_knows_counts_too() -> None:
    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        body = b'{"status":{"nominatedNodeName":"n"}}'
        path = PODS.path("default", "urgent", "status")
        await world.user.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        await refuse(world, made, times=3)
        assert await leaving(world) == []

    play(story, node("n"))


def test_nobody_goes_for_a_pod_that_is_gone_though_kube_scheduler_still_asks() -> None:
    """Its end was heard already, so what were kept for it would be kept for ever."""

    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await world.delete("urgent")
        await refuse(world, made, times=3)
        assert await leaving(world) == []
        assert not world.engine.nominations.owners

    play(story, node("n"))


def test_a_pod_that_passes_in_between_begins_anew() -> None:
    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made, times=1)
        await world.clock.sleep(0.5)
        assert (await world.filter(made, "n", "m")).node_names == ["m"]
        await world.clock.sleep(2.5)
        await refuse(world, made, times=1)
        assert await leaving(world) == []
        await world.clock.sleep(1.0)
        assert await leaving(world) == ["low0"]  # kube-scheduler need not ask again

    play(story, node("n"), node("m"))


def test_few_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemptor, "MOST_REFUSED", 2)

    async def story(world: World) -> None:
        await filled(world, 6)
        pods = [await urgent(world, 1, f"u{at}") for at in range(3)]
        for made in pods:
            await world.filter(made, "n")
        await world.clock.sleep(1.1)
        uids = {made["metadata"]["uid"] for made in pods[1:]}  # the first was forgotten
        assert world.engine.nominations.owners.keys() == uids

    play(story, node("n"))


# ---- what is kept is given up


@pytest.mark.parametrize("end", ["deleted", "ended", "bound elsewhere", "bound by another"])
def test_what_is_kept_ends_with_the_need(end: str) -> None:
    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made)
        assert await leaving(world) == ["low0"]
        await world.delete("low0")
        other = await urgent(world, 6, "other")
        await refuse(world, other, times=1)
        match end:
            case "deleted":
                await world.delete("urgent")
            case "ended":
                path = PODS.path("default", "urgent", "status")
                body = b'{"status":{"phase":"Failed"}}'
                await world.user.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            case "bound elsewhere":
                assert await world.place(made, "m") == ""
            case "bound by another":
                metadata = {"name": "urgent", "namespace": "default"}
                target = {"kind": "Node", "name": "m"}
                body = msgspec.json.encode({"metadata": metadata, "target": target})
                path = PODS.path("default", "urgent", "binding")
                await world.user.request("POST", path, body=body)
        await world.clock.sleep(0.1)
        assert not world.engine.nominations.owners
        assert (await world.filter(other, "n")).node_names == ["n"]

    play(story, node("n"), node("m"))


@pytest.mark.parametrize("end", ["deleted", "bound elsewhere"])
def test_a_deletion_that_waits_for_its_time_ends_with_the_need(end: str) -> None:
    async def story(world: World) -> None:
        tried: list[str] = []

        async def between(method: str, path: str, send: Send) -> Response:
            if is_delete(method, path):
                tried.append(path)
                return refused(503)
            return await send()

        await filled(world, 6)
        made = await urgent(world)
        world.transport.between = between
        await refuse(world, made)
        await world.until(lambda: tried)
        assert world.engine.nominations.doomed
        if end == "deleted":
            await world.delete("urgent")
        else:
            assert await world.place(made, "m") == ""
        await world.clock.sleep(0.1)
        many = len(tried)
        world.transport.between = None
        await world.clock.sleep(30)
        assert await leaving(world) == []
        assert many == len(tried)
        assert not world.engine.nominations.doomed
        assert world.binds.queued["put off"] == 0

    play(story, node("n"), node("m"))


def test_a_victim_that_may_not_be_deleted_stays_and_nothing_is_kept() -> None:
    async def story(world: World) -> None:
        async def between(method: str, path: str, send: Send) -> Response:
            return refused(403, "Forbidden") if is_delete(method, path) else await send()

        world.transport.between = between
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made)
        await world.until(lambda: world.binds.failed["delete"])
        await world.clock.sleep(0.1)
        assert not world.engine.nominations.owners
        world.transport.between = None
        await refuse(world, made, times=3)
        assert await leaving(world) == []  # it is left alone for a while
        await world.clock.sleep(LEFT_ALONE_S)
        await refuse(world, made, times=3)  # it is looked again
        assert await leaving(world) == ["low0"]

    play(story, node("n"))


def test_a_deletion_without_an_answer_is_tried_again() -> None:
    async def story(world: World) -> None:
        answers = [refused(503), refused(500), refused(429), refused(409)]

        async def between(method: str, path: str, send: Send) -> Response:
            if is_delete(method, path) and answers:
                return answers.pop()
            return await send()

        world.transport.between = between
        await filled(world, 6)
        await refuse(world, await urgent(world))
        await world.until(lambda: world.binds.done["delete"])
        assert await leaving(world) == ["low0"]
        assert world.engine.nominations.owners

    play(story, node("n"))


# ---- who may


def test_the_lease_is_lost_before_a_deletion_is_sent() -> None:
    """Between the decision and the sending, and found again at once: it was another's meanwhile."""

    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        term = 0
        world.service.fence.term = lambda: term

        decided = world.binds.preempt

        def preempt(effect: Preempt) -> None:
            nonlocal term
            decided(effect)
            term = 1

        world.binds.preempt = preempt  # type: ignore[method-assign]
        await refuse(world, made, times=1)
        await world.clock.sleep(1.0)
        assert await leaving(world) == []
        assert ("PATCH", PODS.path("default", "low0", "status")) not in world.transport.sent
        await world.clock.sleep(1.0)
        assert not world.engine.nominations.owners
        await refuse(world, made)
        assert await leaving(world) == ["low0"]

    play(story, node("n"))


def test_what_was_not_sent_when_the_lease_is_lost_is_forgotten() -> None:
    async def story(world: World) -> None:
        async def between(method: str, path: str, send: Send) -> Response:
            return refused(503) if is_delete(method, path) else await send()

        world.transport.between = between
        await filled(world, 6)
        await refuse(world, await urgent(world))
        await world.until(lambda: world.binds.queued["put off"])
        world.service.loop.step_down()
        await world.clock.sleep(0.1)
        assert not world.engine.nominations.owners
        world.transport.between = None
        world.service.loop.leads = True
        await world.clock.sleep(20)
        assert await leaving(world) == []

    play(story, node("n"))


def test_when_the_process_stops_what_was_sent_is_finished_and_the_rest_forgotten() -> None:
    async def whole() -> None:
        world = World()
        await world.add_node(node("n"))
        await world.run()
        go, sent = asyncio.Event(), list[str]()

        async def between(method: str, path: str, send: Send) -> Response:
            if not is_delete(method, path):
                return await send()
            sent.append(path)
            if path.endswith("low0"):
                await go.wait()
                return await send()
            return refused(503)

        world.transport.between = between
        await filled(world, 3, 3)
        await refuse(world, await urgent(world))
        await world.until(lambda: len(sent) == 2)
        stopping = asyncio.create_task(world.stop())
        await world.clock.sleep(0.1)
        world.transport.between = None
        go.set()
        await stopping

        assert await leaving(world) == ["low0"]
        assert len(sent) == 2

    run(whole())


# ---- afterwards


def test_after_a_restart_the_pod_gets_its_place_all_the_same() -> None:
    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made)
        assert await leaving(world) == ["low0"]
        await world.kill()
        world.start()
        await world.run()
        await refuse(world, made, times=3)
        assert await leaving(world) == ["low0"]
        await world.delete("low0")
        assert await world.place(made, "n") == ""

    play(story, node("n"))


def test_a_journal_with_places_that_are_kept_decides_the_same_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await filled(world, 2, 4)
        made = await urgent(world)
        await refuse(world, made, times=4)
        for name in ("low0", "low1"):
            await world.delete(name)
        assert await world.place(made, "n") == ""
        await world.delete("n", NODES)

    settings = JournalSettings(str(tmp_path / "journal"), max_size=1_000, keep=500)
    play(story, node("n"), config=replace(QUIET, journal=settings))
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert any('"on":"PlaceWanted"' in text and '"do":"Preempt"' in text for text in texts)
    assert any('"kept":[' in text for text in texts)
    for file in sorted(tmp_path.iterdir()):
        again = CliRunner().invoke(main, ["replay", str(file)])
        assert (again.exit_code, "no decision differs" in again.stdout) == (0, True), again.output
        lawful = CliRunner().invoke(main, ["check", str(file)])
        assert lawful.exit_code == 0, lawful.output


def test_a_question_about_victims_is_not_answered_by_what_is_kept_for_the_pod_itself() -> None:
    """kube-scheduler wants a victim for CPU where devices are kept for the pod already."""

    async def story(world: World) -> None:
        await filled(world, 4, 2)
        web = await world.add(pod("web"))
        assert await world.place(web, "n") == ""
        made = await urgent(world, 4)
        await refuse(world, made)
        assert await leaving(world) == ["low0"]
        await world.delete("low0")
        before = picture(world.engine.cluster)
        uid = web["metadata"]["uid"]
        assert await world.preempt(made, n=[web]) == {"n": [uid]}
        assert "; ".join(differences(before, picture(world.engine.cluster))) == ""

    play(story, node("n"))


def test_a_place_that_kube_scheduler_rules_out_is_given_up_for_another() -> None:
    """It is cordoned, or its CPU went to others: kube-scheduler does not ask about it any more."""

    async def story(world: World) -> None:
        await filled(world, 6)
        made = await urgent(world)
        await refuse(world, made)
        assert await leaving(world) == ["low0"]
        await filled(world, 6, there="m")
        await refuse(world, made, "m")
        assert await leaving(world) == ["low0", "low1"]
        await world.delete("low0")
        other = await urgent(world, 6, "other")
        assert await world.place(other, "n") == ""
        await world.delete("low1")
        assert await world.place(made, "m") == ""

    play(story, node("n"), node("m"))
