"""Devices with cores: two resources of the same devices, their files, and Neuron's annotations."""

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.agent import wire
from bayplan.agent.inventory import FileSource, ListedSource
from bayplan.agent.neuron import NeuronSource
from bayplan.agent.pods import Pod, PodsHere, decode_pod
from bayplan.agent.truth import Correction, Findings, Served, compare
from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    INVENTORY,
    Assignment,
    Device,
    Devices,
    Held,
    HeldDevice,
    read_assignment,
    read_inventory,
    write_assignment,
)
from bayplan.core.model.neuron import annotations_of_neuron
from bayplan.core.model.vendors import NEURON, Vendors
from bayplan.kube.client import Client
from tests.agent.kubelet import Refused
from tests.agent.rig import NODE, Rig, given, running

DEVICE, ALIAS, CORE = (resource.name for resource in NEURON.resources)
VENDORS = Vendors()
FOUR = ListedSource(["neuron=4x2cores"], VENDORS)
SERVED = Served(NODE, VENDORS, FOUR.discover().classes)


def entry(resource: str, *numbers: int, container: str = "main") -> Held:
    devices = tuple(HeldDevice(str(number), number, 1) for number in numbers)
    return Held(container, resource, NODE, devices)


def assigned(*entries: Held) -> dict[str, str]:
    """By ours alone."""
    lists = {f"{IDS}/{each.container}": _numbers(each) for each in entries}
    return {ASSIGNMENT: write_assignment(Assignment(NODE, entries)), **lists}


def bound(*entries: Held) -> dict[str, str]:
    """As with the extender: in Neuron's words, too."""
    return assigned(*entries) | annotations_of_neuron(entries, VENDORS, 1_790_000_000.0)


def _numbers(held: Held) -> str:
    return ",".join(str(device.index) for device in held.devices)


async def started(rig: Rig) -> None:
    await rig.kubelet.until(lambda: {DEVICE, CORE} <= rig.kubelet.devices.keys())


async def run_pod(rig: Rig, name: str, annotations: dict[str, str]) -> None:
    await rig.add_pod(name)
    await rig.bind(name, annotations)
    await rig.until(lambda: any(pod.key[1] == name for pod in rig.agent.pods.all()))


async def until_says(rig: Rig, name: str, **wanted: str) -> None:
    await rig.eyes.until(lambda: wanted.items() <= rig.annotations(name).items())


# ---- with a stand-in kubelet


async def test_devices_and_cores_are_served_and_the_old_name_is_not(folder: Path) -> None:
    file = folder / "inventory.json"

    def says(**more: Any) -> None:
        devices = [{"id": str(i), "index": i, "cores": 2, "numa": i} for i in range(2)]
        devices[1] |= more
        file.write_text(json.dumps({"classes": {"neuron": {"devices": devices}}}))

    says()
    async with running(folder, FileSource(file, VENDORS)) as rig:
        await rig.kubelet.has(DEVICE, **dict.fromkeys("01", "Healthy"))
        await rig.kubelet.has(CORE, **dict.fromkeys("0123", "Healthy"))
        await rig.until(lambda: rig.agent.is_ready)
        assert {each.resource_name for each in rig.kubelet.registered} == {DEVICE, CORE}
        assert rig.kubelet.numa["3"] == [1]

        says(healthy=False)
        sick = {"2": "Unhealthy", "3": "Unhealthy"}
        await rig.kubelet.has(CORE, **{"0": "Healthy", "1": "Healthy"}, **sick)
        await rig.kubelet.has(DEVICE, **{"0": "Healthy", "1": "Unhealthy"})
        with pytest.raises(Refused, match=f"{CORE} 3 is unhealthy"):
            await rig.kubelet.allocate("p", CORE, ["3"])
        with pytest.raises(Refused, match=f"{CORE} 4 is not a device of this node"):
            await rig.kubelet.allocate("p", CORE, ["4"])


async def test_containers_are_told_by_the_variable_of_what_they_asked_for(folder: Path) -> None:
    async with running(folder, FOUR) as rig:
        await started(rig)
        await run_pod(rig, "devices", assigned(entry(DEVICE, 2, 3)))
        await run_pod(rig, "cores", assigned(entry(CORE, 2, 3)))

        devices = await rig.kubelet.admit("devices", DEVICE, 2)
        cores = await rig.kubelet.admit("cores", CORE, 2)

        assert devices.environment == {"AWS_NEURON_VISIBLE_DEVICES": "2,3"}
        assert cores.environment == {"NEURON_RT_VISIBLE_CORES": "2,3"}
        await rig.until(lambda: rig.agent.counts.allocations == 2)
        assert rig.agent.counts.swapped == rig.agent.counts.drift == 0


async def test_containers_get_the_files_of_their_devices(folder: Path) -> None:
    (folder / "root" / "dev").mkdir(parents=True)
    for i in range(4):
        (folder / "root" / "dev" / f"neuron{i}").touch()

    def files(*indexes: int) -> tuple[wire.DeviceFile, ...]:
        paths = [f"/dev/neuron{i}" for i in indexes]
        return tuple(wire.DeviceFile(path, path, "rw") for path in paths)

    async with running(folder, FOUR) as rig:
        await started(rig)
        assert (await rig.kubelet.allocate("a", DEVICE, ["3", "2"])).files == files(2, 3)
        assert (await rig.kubelet.allocate("b", CORE, ["3"])).files == files(1)
        assert (await rig.kubelet.allocate("c", CORE, ["1", "2", "0"])).files == files(0, 1)


async def test_a_pretend_node_has_no_files_to_give_and_says_so_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(folder, FOUR) as rig:
        await started(rig)
        for i in range(3):
            got = await rig.kubelet.allocate(f"p{i}", DEVICE, [str(i)])
            assert got.files == ()
            assert got.environment == {"AWS_NEURON_VISIBLE_DEVICES": str(i)}
        told = [words for words in caplog.messages if "/dev/neuron" in words]
        assert told == [f"{DEVICE}: there is no /dev/neuron0; containers do without"]


async def test_nobody_is_steered_to_what_others_wait_for_by_the_other_name(folder: Path) -> None:
    async with running(folder, FOUR) as rig:
        await started(rig)
        await run_pod(rig, "core", assigned(entry(CORE, 0)))
        await run_pod(rig, "plain", {})
        assert (await rig.kubelet.admit("plain", DEVICE, 1)).ids == {"1"}

        await run_pod(rig, "device", assigned(entry(DEVICE, 2)))
        await run_pod(rig, "other", {})
        assert (await rig.kubelet.admit("other", CORE, 2)).ids == {"1", "6"}


async def test_nobody_is_steered_to_what_others_have_by_the_other_name(folder: Path) -> None:
    """Not even by an assignment, which somebody made who did not know it."""
    async with running(folder, FOUR) as rig:
        await started(rig)
        await run_pod(rig, "cores", {})
        await rig.kubelet.admit("cores", CORE, 2, insist="0,2")
        await run_pod(rig, "late", assigned(entry(DEVICE, 1)))

        assert (await rig.kubelet.admit("late", DEVICE, 1)).ids == {"2"}

        await until_says(rig, "late", **assigned(entry(DEVICE, 2)))
        await until_says(rig, "cores", **assigned(entry(CORE, 0, 2)))
        await run_pod(rig, "more", {})
        assert (await rig.kubelet.admit("more", CORE, 4)).ids == {"1", "3", "6", "7"}


@pytest.mark.parametrize("watch", ["in time", "late"])
async def test_what_a_pod_had_is_free_by_the_other_name_as_soon_as_it_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, watch: str
) -> None:
    async with running(folder, FOUR) as rig:
        await rig.stop_agent()
        rig.kubelet.devices.clear()
        await rig.start_agent(reconcile_s=3600.0)  # nobody asks the kubelet for its account again
        await started(rig)
        await run_pod(rig, "cores", assigned(entry(CORE, 2, 3)))
        await rig.kubelet.admit("cores", CORE, 2)
        await rig.until(lambda: bool(rig.agent.reconciler._settled))
        await rig.until(lambda: not rig.agent.reconciler._recent)
        if watch == "late":
            monkeypatch.setattr(PodsHere, "drop", lambda self, pod: None)
        del rig.kubelet.held["default", "cores"]
        await rig.delete("cores")
        if watch == "in time":
            await rig.until(lambda: rig.agent.pods.all() == [])

        await run_pod(rig, "device", assigned(entry(DEVICE, 1)))
        assert (await rig.kubelet.admit("device", DEVICE, 1)).ids == {"1"}


async def test_cores_that_came_out_swapped_are_put_right_in_both_words(folder: Path) -> None:
    async with running(folder, FOUR) as rig:
        await started(rig)
        await run_pod(rig, "a", bound(entry(CORE, 0, 1)) | {"example.com/mine": "a's"})
        await run_pod(rig, "b", bound(entry(CORE, 4, 5)))

        await rig.kubelet.admit("a", CORE, 2, insist="4,5")

        mine = {"example.com/mine": "a's", "NEURON_ALLOCATED": "true"}
        after = {"a": bound(entry(CORE, 4, 5)) | mine, "b": bound(entry(CORE, 0, 1))}
        for name, wanted in after.items():
            await until_says(rig, name, **wanted)
            assert rig.annotations(name) == wanted
        await rig.until(lambda: rig.agent.counts.swapped == 2)
        assert rig.agent.counts.marked == rig.agent.counts.drift == 0
        assert (await rig.kubelet.admit("b", CORE, 2)).ids == {"0", "1"}
        await until_says(rig, "b", NEURON_ALLOCATED="true")
        await rig.until(lambda: rig.agent.counts.marked == 1)


async def test_a_pod_that_got_what_it_was_given_is_marked_with_one_patch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched: list[str] = []
    request = Client.request

    async def noted(self: Client, method: str, path: str, **more: Any) -> bytes:
        answer = await request(self, method, path, **more)
        if method == "PATCH" and "/pods/" in path:
            patched.append(path.rpartition("/")[2])
        return answer

    monkeypatch.setattr(Client, "request", noted)
    async with running(folder, FOUR) as rig:
        await started(rig)
        before = bound(entry(DEVICE, 2, 3))
        await run_pod(rig, "extended", before)
        await run_pod(rig, "ours", assigned(entry(DEVICE, 1)))
        await rig.kubelet.admit("extended", DEVICE, 2)
        await rig.kubelet.admit("ours", DEVICE, 1)

        await until_says(rig, "extended", NEURON_ALLOCATED="true")
        assert rig.annotations("extended") == before | {"NEURON_ALLOCATED": "true"}
        lists = rig.kubelet.lists
        await rig.kubelet.until(lambda: rig.kubelet.lists >= lists + 3)
        assert patched == ["extended"]
        assert rig.agent.counts.marked == 1
        assert rig.agent.counts.swapped == rig.agent.counts.written == 0


async def test_the_type_of_the_machine_is_read_from_the_node_before_anything_is_told(
    folder: Path,
) -> None:
    for i in range(16):
        (folder / "dev").mkdir(exist_ok=True)
        (folder / "dev" / f"neuron{i}").touch()
    source = NeuronSource(NEURON, folder)
    labels = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    async with running(folder, source, labels=labels) as rig:
        await rig.kubelet.until(lambda: len(rig.kubelet.devices.get(CORE, ())) == 32)
        await rig.eyes.until(lambda: INVENTORY in rig.annotations(NODE, "Node"))
        found = read_inventory(rig.annotations(NODE, "Node")[INVENTORY])
        assert found == ListedSource(["neuron=trn1.32xlarge"], VENDORS).discover()
        assert rig.agent.counts.published == 1


# ---- pure


def pod(name: str, annotations: dict[str, str] | None = None) -> Pod:
    about = {"name": name, "namespace": "default", "uid": name, "annotations": annotations}
    containers = [{"name": "main"}, {"name": "side"}]
    content = {"metadata": about, "spec": {"containers": containers}}
    return decode_pod(json.dumps(content).encode())


def found(pods: list[Pod], **got: list[Held]) -> Findings:
    """Where each pod got these."""
    account = {
        ("default", name): {
            (each.container, each.resource): frozenset(device.id for device in each.devices)
            for each in entries
        }
        for name, entries in got.items()
    }
    return compare(pods, account, SERVED)


def only(findings: Findings) -> Correction:
    (correction,) = findings.corrections
    return correction


def test_what_a_pod_does_not_carry_is_not_added() -> None:
    ids = {"AWS_NEURON_IDS": "0", "NEURON_ALLOC_TIME": "1", "NEURON_DEV_USAGE_MAP": "false"}
    here = pod("a", assigned(entry(DEVICE, 0)) | ids)

    correction = only(found([here], a=[entry(DEVICE, 3)]))

    assert correction.annotations == assigned(entry(DEVICE, 3)) | {"AWS_NEURON_IDS": "3"}
    assert found([pod("a", assigned(entry(CORE, 0)))], a=[entry(CORE, 0)]).corrections == []


def test_keys_that_contradict_what_a_pod_holds_are_put_right_or_removed() -> None:
    forged = {"NEURON_CORES": "9", "NEURON_DEVS": "x" * 5000, "NEURON_RESOURCE_TYPE": CORE}
    here = pod("a", assigned(entry(DEVICE, 1, 2)) | forged)

    correction = only(found([here], a=[entry(DEVICE, 1, 2)]))

    assert correction.annotations == {
        "NEURON_CORES": None,
        "NEURON_DEVS": "1,2",
        "NEURON_RESOURCE_TYPE": DEVICE,
    }
    assert correction.what == "marked"


def test_devices_and_cores_of_one_pod_are_told_apart() -> None:
    entries = entry(DEVICE, 0), entry(CORE, 4, 5, container="side")
    here = pod("a", bound(*entries))

    correction = only(found([here], a=[entries[0], entry(CORE, 6, 7, container="side")]))

    assert correction.annotations[f"{IDS}/side"] == correction.annotations["NEURON_CORES"] == "6,7"
    assert not {f"{IDS}/main", "NEURON_DEVS", "AWS_NEURON_IDS"} & correction.annotations.keys()
    after = read_assignment(correction.annotations[ASSIGNMENT] or "")
    assert isinstance(after, Assignment)
    assert after.held == (entries[0], entry(CORE, 6, 7, container="side"))


def test_what_belongs_to_others_or_is_newer_is_left_alone() -> None:
    words = {"AWS_NEURON_IDS": "7", "NEURON_ALLOCATED": "false"}
    newer = pod("newer", words | {ASSIGNMENT: '{"v": 2}'})
    card = pod("card", words | given(0))
    neither = compare(
        [newer, card],
        {
            ("default", "newer"): {("main", DEVICE): frozenset("0")},
            ("default", "card"): {("main", "nvidia.com/gpu"): frozenset({"nvidia-0"})},
        },
        Served(NODE, VENDORS, {**SERVED.classes, "nvidia": Devices((Device("nvidia-0", 0),))}),
    )

    assert neither.corrections == []


def test_a_pod_that_waits_is_not_moved_onto_devices_whose_cores_are_taken() -> None:
    pods = [pod("a", assigned(entry(DEVICE, 0))), pod("b", assigned(entry(DEVICE, 2)))]
    pods.append(pod("c", assigned(entry(CORE, 1))))
    a_has_bs = [entry(DEVICE, 2)]

    moved = found(pods, a=a_has_bs)
    assert [each.pod.uid for each in moved.corrections] == ["a"]  # c waits for a core of it
    moved = found(pods[:2], a=a_has_bs)
    assert [each.pod.uid for each in moved.corrections] == ["a", "b"]
    moved = found(pods, a=a_has_bs, c=[entry(CORE, 1)])
    assert [each.pod.uid for each in moved.corrections] == ["a"]
    moved = found([*pods[:2], pod("d", assigned(entry(CORE, 4)))], d=[entry(CORE, 4)])
    assert moved.corrections == []  # b waits for a device that is taken in part, and none is free


def test_the_old_name_is_nobodys_to_correct() -> None:
    here = pod("a", assigned(entry(ALIAS, 0)))

    assert found([here], a=[entry(ALIAS, 3)]).corrections == []
