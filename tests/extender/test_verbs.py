"""Filter, prioritize and preempt on the running extender, as kube-scheduler asks them; and a
journal that decides the same again."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bayplan.cli.main import main
from bayplan.core.state.laws import picture
from bayplan.extender import verbs, wire
from bayplan.kube.client import NODES
from bayplan.scheduler.config import Configuration, JournalSettings
from bayplan.scheduler.recording import Recording
from tests.conftest import differences
from tests.extender.decisions import CORE, IDS, TRN1, Json, World, node, play, pod, raw, score_args

LATER = "only pods that were offered devices a moment ago are in the way; try again"


def test_a_pod_without_devices_passes_everywhere() -> None:
    async def story(world: World) -> None:
        full, web = await world.add(pod("full", 6)), await world.add(pod("web"))
        await world.place(full, "n")
        found = await world.filter(web, "n", "m", "nobody")
        assert found.node_names == ["n", "m", "nobody"]
        assert (found.failed_nodes, found.failed_and_unresolvable_nodes) == ({}, {})
        assert await world.prioritize(web, "n", "m") == {"n": 0, "m": 0}
        assert await world.preempt(web, n=[full]) == {"n": [full["metadata"]["uid"]]}
        assert world.service.answers.expected == 0

    play(story, node("n"), node("m"))


def test_who_is_refused_where_and_why() -> None:
    async def story(world: World) -> None:
        first = await world.add(pod("first", 4))
        await world.place(first, "n")
        seven = await world.add(pod("seven", 7))
        found = await world.filter(seven, "n", "t", "new")
        assert found.node_names == []
        assert found.failed_nodes == {"new": "the node is not known yet"}
        assert found.failed_and_unresolvable_nodes == {
            name: f"Instance type {kind} does not support requests for device: 7. "
            "Please request a different number of devices."
            for name, kind in (("n", "inf2.24xlarge"), ("t", TRN1))
        }
        three = await world.filter(await world.add(pod("three", 3)), "n", "t")
        side_by_side = "node(s) had no free devices side by side for aws.amazon.com/neuron"
        assert three.failed_nodes == {"n": side_by_side}
        assert list(three.failed_and_unresolvable_nodes) == ["t"]
        cores = await world.filter(await world.add(pod("cores", 3, resource=CORE)), "n", "t")
        assert cores.node_names == ["n"]
        assert "requests for core: 3" in cores.failed_and_unresolvable_nodes["t"]

    play(story, node("n"), node("t", TRN1))


def test_the_answer_has_the_form_of_the_question() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 1))
        whole = {name: raw(node(name)) for name in ("n", "new")}
        args = wire.FilterArgs(raw(made), list(whole), whole)
        found = await world.service.answers.filter(args)
        assert found.node_names is None
        assert found.nodes is not None
        assert found.nodes.items == [whole["n"]]

    play(story, node("n"))


def test_pods_that_were_offered_the_same_are_told_apart() -> None:
    """Ten pods at once for two nodes with room for two of them each."""

    async def story(world: World) -> None:
        pods = [await world.add(pod(f"p{i}", 3)) for i in range(10)]
        answers = [await world.filter(each, "n", "m") for each in pods]
        passed = [found.node_names or [] for found in answers]
        assert [len(names) for names in passed] in ([2, 2, 1, 1, *[0] * 6], [2, 2, 2, 1, *[0] * 6])
        assert {found.error for found in answers[4:]} == {LATER}
        assert all(not found.failed_nodes for found in answers[4:])
        assert world.service.answers.counts["filter", "later"] == 6
        for each in pods[:4]:
            names = (await world.filter(each, "n", "m")).node_names
            assert names
            assert await world.bind(each, names[0]) == ""
        refused = await world.filter(pods[4], "n", "m")
        assert refused.error == ""
        assert refused.failed_nodes.keys() == {"n", "m"}

    play(story, node("n"), node("m"))


@pytest.mark.parametrize("end", ["2 s", "deleted", "filtered again", "bound elsewhere", "node"])
def test_what_is_held_for_a_pod_ends(end: str) -> None:
    async def story(world: World) -> None:
        first, second = await world.add(pod("first", 4)), await world.add(pod("second", 4))
        assert (await world.filter(first, "n")).node_names == ["n"]
        assert (await world.filter(second, "n")).error == LATER
        match end:
            case "2 s":
                await world.clock.sleep(1.98)
                assert (await world.filter(second, "n")).error == LATER
                await world.clock.sleep(0.03)
            case "deleted":
                await world.delete("first")
            case "filtered again":
                assert (await world.filter(first, "m")).node_names == ["m"]
            case "bound elsewhere":
                assert await world.bind(first, "m") == ""
            case "node":
                await world.delete("n", NODES)
                await world.add_node(node("n"))
        assert (await world.filter(second, "n")).node_names == ["n"]

    play(story, node("n"), node("m"))


def test_a_bind_takes_what_was_only_held() -> None:
    async def story(world: World) -> None:
        first, second = await world.add(pod("first", 4)), await world.add(pod("second", 4))
        await world.filter(first, "n")
        assert await world.bind(second, "n") == ""  # another scheduler was faster
        assert (await world.filter(first, "n")).failed_nodes.keys() == {"n"}
        assert "does not fit on node n: node(s) had no free" in await world.bind(first, "n")

    play(story, node("n"))


def test_a_pod_that_was_filtered_long_ago_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "MOST_ASKED", 2)

    async def story(world: World) -> None:
        pods = [await world.add(pod(f"p{i}", 1)) for i in range(3)]
        for each in pods:
            await world.filter(each, "n")
        world.transport.sent.clear()
        assert [await world.bind(each, "n") for each in pods] == [""] * 3
        read = [path.rsplit("/", 1)[-1] for method, path in world.transport.sent if method == "GET"]
        assert read == ["p0"]

    play(story, node("n"))


def test_priorities_are_0_to_10_and_less_waste_is_better() -> None:
    async def story(world: World) -> None:
        first = await world.add(pod("first", 4))
        await world.place(first, "n")
        for size, better in ((1, "n"), (2, "n"), (6, "m")):
            made = await world.add(pod(f"p{size}", size))
            before = await world.prioritize(made, "n", "m", "nobody")
            await world.filter(made, "n", "m")
            found = await world.prioritize(made, "n", "m", "nobody")
            assert found == before  # what is held for it is not in its way
            assert all(0 <= score <= 10 for score in found.values())
            assert found["nobody"] == 0
            assert found[better] == max(found.values()) > min(found["n"], found["m"])
            await world.delete(f"p{size}")
        exact = await world.add(pod("exact", 2))
        assert await world.prioritize(exact, "n", "nobody") == {"n": 10, "nobody": 0}

    play(story, node("n"), node("m"))


def test_only_nodes_that_are_better_than_the_worst_are_named() -> None:
    async def story(world: World) -> None:
        await world.place(await world.add(pod("first", 4)), "n")
        made = await world.add(pod("p", 1))
        against_nobody = await world.prioritize(made, "n", "m", "o", "nobody")
        answers = world.service.answers
        for names in (("n", "m", "o"), ("m", "n"), ("m", "o"), ("n",), ()):
            found = await answers.prioritize(score_args(made, names))
            worst = min((against_nobody[name] for name in names), default=0)
            more = {name: against_nobody[name] - worst for name in names}
            assert {each.host: each.score for each in found} == {k: v for k, v in more.items() if v}

    play(story, node("n"), node("m"), node("o"))


def test_nodes_are_scored_as_they_were_when_the_pod_was_filtered() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        before = await world.prioritize(made, "n", "m")
        assert (await world.filter(made, "n", "m")).node_names == ["n", "m"]
        for there in ("n", "m"):
            assert await world.bind(await world.add(pod(f"on-{there}", 4)), there) == ""
        assert await world.prioritize(made, "n", "m") == before
        assert await world.prioritize(made, "m", "n") != before  # not what it was filtered over

    play(story, node("n"), node("m"))


def test_they_are_so_too_where_the_nodes_are_told_in_another_form() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        whole = {name: raw(node(name)) for name in ("n", "m")}
        nodes = {"items": [node("n"), node("m")]}
        asked = wire.score_args(msgspec.json.encode({"Pod": made, "Nodes": nodes}))
        await world.place(await world.add(pod("first", 4)), "n")
        assert (await world.filter(made, "n", "m")).node_names == ["n", "m"]
        before = await world.service.answers.prioritize(asked)
        assert [each.host for each in before] == ["n"]
        assert await world.bind(await world.add(pod("on-m", 4)), "m") == ""
        assert await world.service.answers.prioritize(asked) == before
        await world.service.answers.filter(wire.FilterArgs(raw(made), list(whole), whole))
        assert await world.service.answers.prioritize(asked) == []

    play(story, node("n"), node("m"))


def test_preemption_keeps_adds_and_drops() -> None:
    async def story(world: World) -> None:
        await world.add_priorities(5, 10, 100)
        pods = {}
        for name, size, there, priority in (
            ("low", 2, "n", 0),
            ("mid", 2, "n", 5),
            ("high", 2, "n", 100),
            ("one", 3, "m", 0),
            ("two", 3, "m", 0),
            ("mighty", 6, "x", 100),
        ):
            pods[name] = await world.add(pod(name, size, priority=priority))
            assert await world.place(pods[name], there) == ""
        uid = {name: each["metadata"]["uid"] for name, each in pods.items()}
        mine = await world.add(pod("mine", 4, priority=10))
        before = picture(world.engine.cluster)
        kept = await world.preempt(
            mine, n=[pods["low"]], m=[pods["one"]], x=[pods["mighty"]], nobody=[pods["low"]]
        )
        # Side by side, four are only to be had of low and mid; on m, of both; on x, as given.
        assert kept == {
            "n": sorted([uid["low"], uid["mid"]]),
            "m": sorted([uid["one"], uid["two"]]),
            "x": [uid["mighty"]],
        }
        five = await world.add(pod("five", 5, priority=10))
        kept = await world.preempt(five, n=[pods["low"]], m=[pods["one"]])
        assert kept == {"m": sorted([uid["one"], uid["two"]])}  # of n, high would have to go
        assert "; ".join(differences(before, picture(world.engine.cluster))) == ""
        assert world.service.answers.counts["preempt", "kept"] == 2
        seven = await world.add(pod("seven", 7, priority=10))
        assert await world.preempt(seven, n=[pods["low"]], m=[pods["one"]]) == {}
        assert world.service.answers.counts["preempt", "refused"] == 1

    play(story, node("n"), node("m"), node("x"))


def test_budgets_that_are_violated_are_told_on() -> None:
    async def story(world: World) -> None:
        await world.add_priorities(1)
        victim, mine = await world.add(pod("v", 6)), await world.add(pod("p", 2, priority=1))
        await world.place(victim, "n")
        given = wire.MetaVictims.of([victim["metadata"]["uid"]], 3)
        found = await world.service.answers.preempt(wire.PreemptArgs(raw(mine), {"n": given}))
        assert found.victims == {"n": given}

    play(story, node("n"))


# ---- the journal


async def busy(world: World) -> None:
    """Everything that there is to decide, with pods that are expected at every moment."""
    pods: list[Json] = []
    for i, size in enumerate((1, 4, 8, 2, 3, 1, 16, 5, 4, 1, 2, 6)):
        made = await world.add(pod(f"p{i}", size))
        pods.append(made)
        found = await world.filter(made, "n", "m", "t")
        await world.prioritize(made, "n", "m", "t")
        if found.node_names and i % 3:
            await world.bind(made, found.node_names[-1])
        elif i % 5 == 0:
            await world.bind(made, "t")
        if i == 6:
            await world.delete("p1")
            await world.delete("m", NODES)
        await world.clock.sleep(0.3)


@pytest.mark.parametrize("size", [100 << 20, 1_000], ids=["one file", "many files"])
def test_a_journal_decides_the_same_again(tmp_path: Path, size: int) -> None:
    path = tmp_path / "journal"
    settings = JournalSettings(str(path), max_size=size, keep=500)
    config = replace(Configuration(check_live_every=0), journal=settings)
    play(busy, node("n"), node("m"), node("t", TRN1), config=config)

    files = sorted(tmp_path.iterdir())
    assert (len(files) > 5) == (size == 1_000)
    binds = held = 0
    for file in files:
        again = CliRunner().invoke(main, ["replay", str(file)])
        assert (again.exit_code, "no decision differs" in again.stdout) == (0, True), again.output
        lawful = CliRunner().invoke(main, ["check", str(file)])
        assert lawful.exit_code == 0, lawful.output
        recording = Recording(file)
        held += bool(recording.state.expected)
        binds += sum(
            outcome.do == "Bind" for step in recording.steps() for outcome in step.outcomes
        )
    assert binds >= 5
    assert (held > 1) == (size == 1_000)  # snapshots in the middle, with something held


def test_a_decision_of_a_journal_that_was_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def story(world: World) -> None:
        first, second = await world.add(pod("first", 4)), await world.add(pod("second", 2))
        await world.filter(first, "n")
        await world.place(second, "n")
        assert world.ids_of("second") == "4,5"  # beside what is held for the first
        await world.bind(first, "n")

    settings = JournalSettings(str(path))
    play(story, node("n"), config=replace(Configuration(check_live_every=0), journal=settings))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"on":"PodExpected"' not in line))
    result = CliRunner().invoke(main, ["replay", str(path)])
    assert result.exit_code == 1
    assert "default/second" in result.stdout


# ---- the whole of it


def test_a_restart_finds_what_was_given_whatever_stands_on_the_nodes() -> None:
    async def story(world: World) -> None:
        for i in range(3):
            made = await world.add(pod(f"p{i}", 2))
            assert await world.place(made, "n") == ""
        given = [world.ids_of(f"p{i}") for i in range(3)]
        assert sorted(given) == ["0,1", "2,3", "4,5"]
        await world.kill()
        lies: dict[str, str | None] = {"NEURON_DEV_USAGE_MAP": "false", "NEURON_CORE_USAGE_MAP": ""}
        await world.annotate(NODES.path(name="n"), lies)
        await world.delete("p1")
        world.start()
        await world.run()
        made = await world.add(pod("again", 2))
        assert await world.place(made, "n") == ""
        assert (await world.get("again"))["metadata"]["annotations"][IDS] == given[1]

    play(story, node("n"))
