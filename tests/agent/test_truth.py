"""Assignments follow what the kubelet really gave, and nothing else is touched."""

import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from bayplan.agent import wire
from bayplan.agent.pods import Pod, decode_pod
from bayplan.agent.reconcile import Reconciler, account_of
from bayplan.agent.truth import Correction, Served, compare
from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    Assignment,
    Device,
    Devices,
    Held,
    HeldDevice,
    read_assignment,
    write_assignment,
)
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import ApiError
from tests.agent.rig import GPU, NODE, entry, given, running

MEMORY = Held("main", "bayplan.dev/gpu-memory-mib", NODE, (HeldDevice("nvidia-0", 0, 512),))
FOUR = Devices(tuple(Device(f"nvidia-{i}", i) for i in range(4)))
SERVED = Served(NODE, Vendors(), {"nvidia": FOUR})


# ---- with a stand-in kubelet


async def test_two_pods_that_came_out_swapped_are_put_right(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.stop_agent()
        await rig.start_agent(reconcile_s=3600.0)  # not by looking every so often
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0, **{"example.com/mine": "a's"})
        await rig.run_pod("b", 1, **{"example.com/mine": "b's"})

        await rig.kubelet.admit("b", GPU, 1, insist="nvidia-0")
        await rig.kubelet.admit("a", GPU, 1, insist="nvidia-1")

        await rig.until_given(a="1", b="0")
        assert rig.annotations("a")["example.com/mine"] == "a's"
        await rig.until(lambda: rig.agent.counts.swapped == 2)
        assert rig.agent.counts.drift == rig.agent.counts.written == 0


async def test_a_pod_that_still_waits_gets_what_the_other_was_given(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0, 1)
        await rig.run_pod("b", 2, 3)

        await rig.kubelet.admit("a", GPU, 2, insist="nvidia-2,nvidia-3")

        await rig.until_given(a="2,3", b="0,1")  # before the kubelet has come to b
        await rig.until(lambda: rig.agent.pods.all()[1].entries(NODE) == (entry(0, 1),))
        assert (await rig.kubelet.admit("b", GPU, 2)).ids == {"nvidia-0", "nvidia-1"}


async def test_four_equal_pods_in_any_order_end_up_true(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        for i in range(4):
            await rig.run_pod(f"p{i}", i)
        for i in (2, 0, 3, 1):  # the kubelet's order is not that of the binds
            await rig.kubelet.admit(f"p{i}", GPU, 1)
        held = {name: places["main", GPU] for (_, name), places in rig.kubelet.held.items()}

        await rig.until_given(**{n: min(ids).removeprefix("nvidia-") for n, ids in held.items()})
        assert rig.agent.counts.swapped >= 2


async def test_an_assignment_that_is_missing_is_written(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.add_pod("plain")
        await rig.bind("plain", {"example.com/mine": "mine"})

        await rig.kubelet.admit("plain", GPU, 1, insist="nvidia-2")

        await rig.until_given(plain="2")
        assert rig.annotations("plain") == {**given(2), "example.com/mine": "mine"}
        await rig.until(lambda: rig.agent.counts.written == 1)
        assert rig.agent.counts.drift == 1  # nobody was given that device
        assert rig.agent.counts.swapped == 0


async def test_what_happened_while_the_agent_was_away_is_put_right(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.stop_agent()
        await rig.run_pod("a", 0)
        await rig.run_pod("b", 1)
        rig.kubelet.held = {
            ("default", "a"): {("main", GPU): frozenset({"nvidia-1"})},
            ("default", "b"): {("main", GPU): frozenset({"nvidia-0"})},
        }
        await rig.start_agent()

        await rig.until_given(a="1", b="0")


async def test_a_change_by_somebody_else_meanwhile_is_not_lost(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0)
        await rig.until(lambda: len(rig.agent.pods.all()) == 1)
        stale = rig.agent.pods.all()[0]
        path = PODS.path("default", "a")
        await rig.ask("PATCH", path, {"metadata": {"annotations": {"example.com/mine": "new"}}})
        account = {("default", "a"): {("main", GPU): frozenset({"nvidia-3"})}}
        correction = compare([stale], account, SERVED).corrections[0]

        assert not await rig.agent.reconciler._write(correction)
        other = replace(correction, pod=replace(stale, uid="another"))
        assert not await rig.agent.reconciler._write(other)
        assert rig.agent.counts.swapped == 0

        await rig.kubelet.allocate("a", GPU, ["nvidia-3"])
        await rig.until_given(a="3")
        assert rig.annotations("a")["example.com/mine"] == "new"


async def test_a_swap_of_which_one_half_is_late_is_no_drift(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a real kubelet has it: the report on the second pod's status comes in between."""
    tries: list[str] = []
    write = Reconciler._write

    async def late(self: Reconciler, correction: Correction) -> bool:
        tries.append(correction.pod.key[1])
        return False if tries.count("b") == 1 == len(tries) - 1 else await write(self, correction)

    monkeypatch.setattr(Reconciler, "_write", late)
    async with running(folder) as rig:
        await rig.stop_agent()
        await rig.run_pod("a", 0)
        await rig.run_pod("b", 1)
        rig.kubelet.held = account(a={"main": (1,)}, b={"main": (0,)})
        await rig.start_agent()

        await rig.until_given(a="1", b="0")
        assert tries[:2] == ["a", "b"]
        assert "b" in tries[2:]
        assert rig.agent.counts.drift == 0


async def test_a_pod_that_is_gone_and_holds_devices_is_told_once(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0)
        await rig.kubelet.admit("a", GPU, 1)
        await rig.delete("a")

        await rig.until(lambda: rig.agent.counts.drift == 1)
        lists = rig.kubelet.lists
        await rig.kubelet.until(lambda: rig.kubelet.lists >= lists + 3)
        assert rig.agent.counts.drift == 1


async def test_a_kubelet_that_gives_no_account_is_asked_again(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.kubelet.stop()
        await rig.run_pod("a", 0)
        rig.kubelet.held["default", "a"] = {("main", GPU): frozenset({"nvidia-1"})}
        await rig.until(lambda: rig.agent.counts.troubles > 0)

        await rig.kubelet.start()
        await rig.until_given(a="1")


async def test_a_no_to_one_pod_is_none_to_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    request = Client.request

    async def refusing(self: Client, method: str, path: str, **more: Any) -> bytes:
        if method == "PATCH" and path.endswith("/pods/a"):
            tries.append(path)
            raise ApiError(403, "Forbidden", "a policy does not want it")
        return await request(self, method, path, **more)

    monkeypatch.setattr(Client, "request", refusing)
    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0)
        await rig.run_pod("b", 1)
        await rig.kubelet.admit("a", GPU, 1, insist="nvidia-2")
        await rig.kubelet.admit("b", GPU, 1, insist="nvidia-3")

        await rig.until_given(b="3")
        lists = rig.kubelet.lists
        await rig.kubelet.until(lambda: rig.kubelet.lists >= lists + 3)
        assert len(tries) == 1  # the next after a while
        assert rig.agent.counts.troubles == 1


async def test_an_account_that_cannot_be_read_ends_nothing(folder: Path) -> None:
    async def garbage(asked: bytes, context: Any) -> bytes:
        return bytes([0xFF])

    async with running(folder) as rig:
        await rig.kubelet.until(lambda: GPU in rig.kubelet.devices)
        await rig.run_pod("a", 0)
        await rig.kubelet.stop()
        other = grpc.aio.server()
        handlers: Any = {"List": grpc.unary_unary_rpc_method_handler(garbage)}
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
        other.add_generic_rpc_handlers((service,))
        other.add_insecure_port(f"unix:{rig.kubelet.pod_resources}")
        await other.start()
        await rig.until(lambda: rig.agent.counts.troubles > 0)
        await other.stop(None)

        rig.kubelet.held = account(a={"main": (1,)})
        await rig.kubelet.start()
        await rig.until_given(a="1")


async def test_pods_without_devices_are_not_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    is_here = Reconciler._is_here

    async def noted(self: Reconciler, key: tuple[str, str]) -> bool:
        asked.append(key[1])
        return await is_here(self, key)

    monkeypatch.setattr(Reconciler, "_is_here", noted)
    async with running(folder) as rig:
        rig.kubelet.held = account(holds={"main": (1,)}) | {("default", "plain"): {}}
        await rig.until(lambda: rig.agent.counts.drift == 1)
        assert set(asked) == {"holds"}


# ---- pure


def pod(name: str, annotations: dict[str, str] | None = None, **more: Any) -> Pod:
    content = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": annotations,
        },
        "spec": {
            "containers": [{"name": "main"}, {"name": "side"}],
            "initContainers": [{"name": "init"}],
        },
        **more,
    }
    return decode_pod(json.dumps(content).encode())


def account(**pods: dict[str, tuple[int, ...]]) -> Any:
    return {
        ("default", name): {
            (container, GPU): frozenset(f"nvidia-{i}" for i in ids)
            for container, ids in containers.items()
        }
        for name, containers in pods.items()
    }


def test_entries_of_other_resources_and_containers_stay() -> None:
    here = pod("a", given(0, more=(MEMORY,)))

    (correction,) = compare([here], account(a={"main": (2,)}), SERVED).corrections

    after = read_assignment(correction.annotations[ASSIGNMENT] or "")
    assert isinstance(after, Assignment)
    assert after.held[1] == MEMORY
    assert after.held[0].devices == (HeldDevice("nvidia-2", 2, 1),)
    assert correction.annotations[f"{IDS}/main"] == "nvidia-2,nvidia-0"
    assert correction.what == "swapped"


def test_init_containers_are_read_from_the_status() -> None:
    told = [{"name": GPU, "resources": [{"resourceID": "nvidia-1", "health": "Healthy"}]}]
    status = {"initContainerStatuses": [{"name": "init", "allocatedResourcesStatus": told}]}

    (correction,) = compare(
        [pod("a", status=status)], account(a={"main": (1,)}), SERVED
    ).corrections

    assert correction.annotations[f"{IDS}/init"] == "nvidia-1"
    assert correction.what == "written"


def test_a_pod_whose_init_container_alone_has_devices() -> None:
    told = [{"name": GPU, "resources": [{"resourceID": "nvidia-1", "health": "Healthy"}]}]
    status = {"initContainerStatuses": [{"name": "init", "allocatedResourcesStatus": told}]}
    given_it = {ASSIGNMENT: write_assignment(Assignment(NODE, (entry(0, container="init"),)))}

    found = compare([pod("a", given_it, status=status)], {("default", "a"): {}}, SERVED)

    assert found.corrections[0].annotations[f"{IDS}/init"] == "nvidia-1"
    assert compare([pod("a", given_it, status=status)], {}, SERVED).corrections == []


def test_what_is_right_is_left_alone() -> None:
    right = pod("a", given(1, 0))

    found = compare([right], account(a={"main": (0, 1)}), SERVED)

    assert (found.corrections, found.drift, found.refused) == ([], [], [])


def test_nothing_of_another_nodes_assignment_stays() -> None:
    foreign = pod("a", given(0, node="n2", more=(replace(MEMORY, pool="n2"),)))

    found = compare([foreign], account(a={"main": (0,)}), SERVED)

    assert found.corrections[0].annotations == given(0)
    assert [words for _, words in found.refused] == [
        "the assignment of default/a is for node n2, and not used on n1"
    ]


def test_a_newer_assignment_is_left_alone() -> None:
    newer = pod("a", {ASSIGNMENT: '{"v": 2}'})

    found = compare([newer], account(a={"main": (0,)}), SERVED)

    assert found.corrections == []
    assert len(found.refused) == 1


def test_resources_that_others_serve_are_not_ours() -> None:
    held = {("default", "a"): {("main", "other.com/gpu"): frozenset({"x"})}}

    found = compare([pod("a")], held, SERVED)

    assert (found.corrections, found.drift) == ([], [])


def test_a_card_that_vanished_keeps_its_index_and_a_strange_one_is_told() -> None:
    fewer = Served(NODE, Vendors(), {"nvidia": Devices(FOUR.devices[:1])})
    lost, strange = pod("lost", given(3)), pod("strange", given(0))

    found = compare([lost, strange], account(lost={"main": (3,)}, strange={"main": (2,)}), fewer)

    assert found.corrections == []
    assert [words for _, words in found.drift] == [
        "nvidia.com/gpu nvidia-2 is used by default/strange, and was given to nobody",
        "default/strange holds nvidia-2, not all devices of this node",
    ]


def test_a_pod_that_waits_is_not_moved_onto_what_another_waits_for() -> None:
    pods = [pod("a", given(0)), pod("b", given(1)), pod("c", given(0))]

    found = compare(pods, account(a={"main": (1,)}), SERVED)

    assert [each.pod.key[1] for each in found.corrections] == ["a"]


def test_pods_that_have_ended_hold_nothing() -> None:
    ended = pod("old", given(1), status={"phase": "Succeeded"})

    found = compare([ended, pod("new")], account(new={"main": (1,)}), SERVED)

    assert [each.pod.key[1] for each in found.corrections] == ["new"]
    assert len(found.drift) == 1


def test_a_name_that_two_pods_share_says_nothing() -> None:
    one = wire.Pod("a", "default", ())

    assert account_of(wire.Pods((one, one, wire.Pod("b", "default")))) == {("default", "b"): {}}
