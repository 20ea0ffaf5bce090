"""The device plugin against a stand-in kubelet (no kubelet runs here) and the embedded API."""

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.agent import wire
from bayplan.agent.inventory import FileSource
from bayplan.agent.pods import Pod, PodsHere
from bayplan.core.model.devices import ASSIGNMENT, Assignment, Held, HeldDevice, write_assignment
from bayplan.core.model.vendors import NVIDIA, Resource, Vendors
from bayplan.kube.client import NODES
from bayplan.local.faults import Chances
from tests.agent.kubelet import Refused
from tests.agent.rig import GPU, NODE, given, running

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
ALL = {f"nvidia_{i}": HEALTHY for i in range(4)}


async def test_it_registers_and_shows_its_devices(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)

        asked = rig.kubelet.registered[0]
        assert asked.resource_name == GPU
        assert asked.options.get_preferred_allocation_available
        assert not asked.options.pre_start_required
        await rig.until(lambda: rig.agent.is_ready)
        assert rig.agent.counts.registrations == 1


async def test_it_registers_again_when_the_kubelet_restarts(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.run_pod("a", 2)
        first = await rig.kubelet.admit("a", GPU, 1)

        for _ in range(3):
            await rig.kubelet.restart()
            await rig.kubelet.has(GPU, **ALL)

        await rig.run_pod("b", 1)
        second = await rig.kubelet.admit("b", GPU, 1)
        assert first.ids == {"nvidia-2"}
        assert second.ids == {"nvidia-1"}
        assert rig.agent.counts.registrations == 4
        assert [path.name for path in rig.kubelet.plugins.glob("bayplan-*")] == [
            rig.kubelet.registered[-1].endpoint
        ]


async def test_it_registers_again_when_only_the_kubelets_socket_is_another(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.kubelet.stop()
        (rig.kubelet.plugins / "kubelet.sock").unlink(missing_ok=True)
        await rig.kubelet.start(wipe=False)

        await rig.kubelet.has(GPU, **ALL)
        assert len({asked.endpoint for asked in rig.kubelet.registered}) == 1


async def test_it_registers_again_when_only_its_socket_is_gone(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        rig.kubelet.devices.clear()
        (rig.kubelet.plugins / rig.kubelet.registered[0].endpoint).unlink()

        await rig.kubelet.has(GPU, **ALL)
        assert len({asked.endpoint for asked in rig.kubelet.registered}) == 2


async def test_it_registers_again_when_the_kubelet_hangs_up(folder: Path) -> None:
    """It does so to the newest plugin of a resource when an older one ends."""
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        for _ in range(2):
            await rig.kubelet.hang_up(GPU)
            await rig.until(lambda: not rig.agent.is_ready)
            await rig.kubelet.has(GPU, **ALL)
        await rig.until(lambda: rig.agent.is_ready)
        assert rig.agent.counts.registrations == 3


async def test_it_comes_anew_when_the_node_offers_none_of_its_devices(folder: Path) -> None:
    """As after another plugin of the same resource has come and gone: the kubelet still listens."""

    async def status_says(count: str) -> None:
        amounts = {"status": {"allocatable": {GPU: count}}}
        await rig.ask("PATCH", NODES.path(name=NODE, sub="status"), amounts)

    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await status_says("4")
        await rig.until(lambda: rig.agent.is_ready)
        await status_says("0")
        await rig.until(lambda: not rig.agent.is_ready)
        await rig.until(lambda: rig.agent.counts.registrations == 2)
        await status_says("4")
        await rig.until(lambda: rig.agent.is_ready)
        assert len({asked.endpoint for asked in rig.kubelet.registered}) == 2


async def test_two_agents_by_mistake_do_not_take_each_others_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)  # as in every container
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        first = rig.agent
        async with rig.another_agent():
            await rig.until(lambda: rig.agent is not first and rig.agent.is_ready)
            one, other = (rig.kubelet.plugins / each.endpoint for each in rig.kubelet.registered)
            assert one.exists()
            assert other.exists()
        assert one.exists()
        assert not other.exists()


async def test_it_waits_for_the_kubelets_folder(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.stop_agent()
        await rig.kubelet.stop()
        (folder / "plugins").rename(folder / "away")
        await rig.start_agent()
        await rig.until(lambda: rig.agent.counts.troubles >= 2)  # its account is not there either
        (folder / "away").rename(folder / "plugins")
        await rig.kubelet.start()
        await rig.kubelet.has(GPU, **ALL)


async def test_what_the_kubelet_has_asked_is_answered_before_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def slow(self: PodsHere) -> list[Pod]:
        asked.set()
        await ended.wait()
        return []

    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.until(lambda: rig.agent.is_ready)
        monkeypatch.setattr(PodsHere, "read_now", slow)
        wish = wire.Wishes((wire.Wish(("nvidia-0", "nvidia-1"), (), 1),))
        answer = asyncio.create_task(
            rig.kubelet._call(GPU, "GetPreferredAllocation", wish, wire.IdsPerContainer)
        )
        await asked.wait()
        stopping = asyncio.create_task(rig.stop_agent())
        await rig.until(lambda: not rig.agent.is_ready)
        ended.set()
        assert (await answer).containers[0].ids == ("nvidia-0",)
        await stopping


async def test_it_waits_for_a_kubelet_that_is_not_there_yet(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.kubelet.stop()
        (rig.kubelet.plugins / "kubelet.sock").unlink(missing_ok=True)
        await rig.until(lambda: not rig.agent.is_ready)

        await rig.kubelet.start()
        await rig.kubelet.has(GPU, **ALL)


async def test_an_agent_that_restarts_goes_on_where_the_last_one_was(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.run_pod("a", 3)
        await rig.kubelet.admit("a", GPU, 1)
        await rig.run_pod("b", 2)

        await rig.stop_agent()
        rig.kubelet.devices.clear()
        await rig.start_agent()

        await rig.kubelet.has(GPU, **ALL)
        assert (await rig.kubelet.admit("b", GPU, 1)).ids == {"nvidia-2"}
        await rig.until_given(a="3", b="2")
        assert rig.agent.counts.swapped == rig.agent.counts.drift == 0


async def test_sockets_that_a_killed_agent_left_are_removed(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.stop_agent()
        left = rig.kubelet.plugins / "bayplan-nvidia.com-gpu-1-0.sock"
        alive = rig.kubelet.plugins / "bayplan-nvidia.com-gpu-2-0.sock"
        with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as other:
            dead.bind(str(left))
            other.bind(str(alive))
            other.listen()
            dead.close()
            rig.kubelet.devices.clear()
            await rig.start_agent()
            await rig.kubelet.has(GPU, **ALL)
            assert not left.exists()
            assert alive.exists()


async def test_a_socket_whose_queue_is_full_holds_nobody_up(folder: Path) -> None:
    """As that of an agent that hangs."""
    async with running(folder) as rig:
        await rig.stop_agent()
        path = str(rig.kubelet.plugins / "bayplan-nvidia.com-gpu-3-0.sock")
        with socket.socket(socket.AF_UNIX) as hangs, contextlib.ExitStack() as queue:
            hangs.bind(path)
            hangs.listen(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    waits = queue.enter_context(socket.socket(socket.AF_UNIX))
                    waits.setblocking(False)
                    waits.connect(path)
            rig.kubelet.devices.clear()
            await rig.start_agent()
            await rig.kubelet.has(GPU, **ALL)


async def test_a_change_of_health_is_streamed(folder: Path) -> None:
    file = folder / "inventory.yaml"
    file.write_text(inventory(True, True))
    async with running(folder, FileSource(file, Vendors())) as rig:
        await rig.kubelet.has(GPU, a=HEALTHY, b=HEALTHY)
        assert rig.kubelet.numa == {"a": [0], "b": [1]}

        file.write_text(inventory(True, False))
        await rig.kubelet.has(GPU, a=HEALTHY, b=UNHEALTHY)
        with pytest.raises(Refused, match="b is unhealthy"):
            await rig.kubelet.allocate("p", GPU, ["b"])

        file.write_text("")
        await rig.kubelet.has(GPU)
        await rig.eyes.until(lambda: devices_of(rig.annotations(NODE, "Node")) == {"nvidia": []})


async def test_a_class_that_is_no_longer_named_is_still_watched_over(folder: Path) -> None:
    file = folder / "inventory.yaml"
    file.write_text(inventory(True, True))
    async with running(folder, FileSource(file, Vendors())) as rig:
        await rig.kubelet.has(GPU, a=HEALTHY, b=HEALTHY)
        file.write_text("{}")
        await rig.kubelet.has(GPU)
        await rig.add_pod("p")
        await rig.bind("p")
        rig.kubelet.held["default", "p"] = {("main", GPU): frozenset({"a"})}

        await rig.until(lambda: rig.agent.counts.drift > 0)


async def test_a_file_that_breaks_leaves_devices_as_they_were(folder: Path) -> None:
    file = folder / "inventory.yaml"
    file.write_text(inventory(True, True))
    async with running(folder, FileSource(file, Vendors())) as rig:
        await rig.kubelet.has(GPU, a=HEALTHY, b=HEALTHY)
        file.write_text("classes: [")
        await rig.until(lambda: rig.agent.counts.troubles == 1)
        file.write_text(inventory(False, True))
        await rig.kubelet.has(GPU, a=UNHEALTHY, b=HEALTHY)


async def test_the_kubelet_is_steered_to_the_assignment(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.run_pod("a", 3, 1)

        got = await rig.kubelet.admit("a", GPU, 2)

        assert got.ids == {"nvidia-1", "nvidia-3"}
        assert got.environment == {"NVIDIA_VISIBLE_DEVICES": "nvidia-1,nvidia-3"}
        assert rig.agent.counts.allocations == 1


async def test_four_equal_pods_each_get_their_own(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        order = (2, 0, 3, 1)
        for i in order:
            await rig.run_pod(f"p{i}", i)
        got = [await rig.kubelet.admit(f"p{i}", GPU, 1) for i in order]

        assert [each.ids for each in got] == [{f"nvidia-{i}"} for i in order]
        await rig.until_given(p0="0", p1="1", p2="2", p3="3")
        assert rig.agent.counts.swapped == 0


async def test_a_pod_that_the_watch_has_not_brought_yet_is_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.until(lambda: rig.agent.pods.synced_once.is_set())
        monkeypatch.setattr(PodsHere, "put", lambda self, pod: None)
        for i in (3, 2, 1):
            await rig.run_pod(f"p{i}", i)
            assert (await rig.kubelet.admit(f"p{i}", GPU, 1)).ids == {f"nvidia-{i}"}


async def test_who_has_no_assignment_does_not_take_what_others_wait_for(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.run_pod("waits", 0, 1)
        await rig.add_pod("plain")
        await rig.bind("plain")

        assert (await rig.kubelet.admit("plain", GPU, 1)).ids == {"nvidia-2"}
        assert (await rig.kubelet.admit("waits", GPU, 2)).ids == {"nvidia-0", "nvidia-1"}


async def test_who_has_no_assignment_does_not_take_a_card_that_is_shared(folder: Path) -> None:
    parts = tuple(
        Held("main", f"bayplan.dev/gpu-{what}", NODE, (HeldDevice(f"nvidia-{i}", i, 10),))
        for i, what in enumerate(("memory-mib", "compute-percent"))
    )
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        for i, part in enumerate(parts):
            await rig.add_pod(f"shares-{i}", 0)
            assignment = write_assignment(Assignment(NODE, (part,)))
            await rig.bind(f"shares-{i}", {ASSIGNMENT: assignment})
        await rig.add_pod("plain", 2)
        await rig.bind("plain")
        await rig.until(lambda: len(rig.agent.pods.all()) == 3)

        assert (await rig.kubelet.admit("plain", GPU, 2)).ids == {"nvidia-2", "nvidia-3"}


async def test_known_pods_are_served_while_the_api_is_away(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        for i in (3, 1):
            await rig.run_pod(f"p{i}", i)
        await rig.until(lambda: len(rig.agent.pods.all()) == 2)
        rig.faults.chances = Chances(refused=1.0)

        await rig.kubelet.admit("p1", GPU, 1, insist="nvidia-2")
        assert (await rig.kubelet.admit("p3", GPU, 1)).ids == {"nvidia-3"}
        assert len((await rig.kubelet.admit("unknown", GPU, 1)).ids) == 1
        await rig.until(lambda: rig.agent.counts.troubles > 0)
        rig.faults.chances = Chances()

        await rig.until_given(p1="2", p3="3")


@pytest.mark.parametrize(
    "annotations",
    [
        given(3, node="n2"),
        {ASSIGNMENT: json.dumps({"v": 2, "node": NODE, "held": []})},
        {ASSIGNMENT: "{"},
        given(7),  # there is no such device
    ],
    ids=["another node's", "newer", "unreadable", "forged"],
)
async def test_an_assignment_that_cannot_be_right_is_not_used(
    folder: Path, annotations: dict[str, str]
) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)
        await rig.add_pod("odd")
        await rig.bind("odd", annotations)
        await rig.run_pod("good", 3)

        assert (await rig.kubelet.admit("odd", GPU, 1)).ids == {"nvidia-3"}  # as good's would be
        newer = '"v": 2' in annotations[ASSIGNMENT]
        if newer:
            await rig.until_given(good="3")
            assert rig.annotations("odd") == annotations
        else:
            await rig.until_given(odd="3")
        await rig.until(lambda: rig.agent.counts.refused_assignments == (annotations != given(7)))


async def test_unknown_devices_are_refused(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.has(GPU, **ALL)

        with pytest.raises(Refused, match="nvidia-9 is not a device of this node"):
            await rig.kubelet.allocate("p", GPU, ["nvidia-0", "nvidia-9"])
        with pytest.raises(Refused, match="twice"):
            await rig.kubelet.allocate("p", GPU, ["nvidia-0", "nvidia-0"])
        with pytest.raises(Refused, match="no devices"):
            await rig.kubelet.allocate("p", GPU, [])
        assert rig.agent.counts.refusals == 3
        assert rig.agent.counts.allocations == 0


async def test_a_class_of_another_vendor_by_index(folder: Path) -> None:
    other = replace(
        NVIDIA, resources=(Resource("example.com/npu"),), ids="index", environment="NPUS"
    )
    async with running(folder, vendors=Vendors((other,))) as rig:
        await rig.kubelet.has("example.com/npu", **ALL)
        got = await rig.kubelet.allocate("p", "example.com/npu", ["nvidia-2", "nvidia-0"])
        assert got.environment == {"NPUS": "0,2"}


def inventory(*healthy: bool) -> str:
    devices = [
        {"id": "ab"[i], "index": i, "memoryMib": 1024, "numa": i, "healthy": is_healthy}
        for i, is_healthy in enumerate(healthy)
    ]
    return json.dumps({"classes": {"nvidia": {"devices": devices}}})


def devices_of(annotations: dict[str, str]) -> dict[str, list[str]]:
    classes = json.loads(annotations.get("bayplan.dev/devices", '{"classes": {}}'))["classes"]
    return {name: [device["id"] for device in each["devices"]] for name, each in classes.items()}
