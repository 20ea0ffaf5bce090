"""What a node says about its devices: the annotation, and the amounts in its status."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bayplan.agent import publish
from bayplan.agent.inventory import FileSource
from bayplan.agent.publish import Publisher, totals
from bayplan.core.model.devices import (
    ASSIGNMENT,
    INVENTORY,
    Assignment,
    Device,
    Devices,
    Held,
    HeldDevice,
    Inventory,
    read_inventory,
    write_assignment,
)
from bayplan.core.model.vendors import DeviceClass, Resource, Vendors
from bayplan.kube.client import NODES
from bayplan.kube.transport import ApiError
from tests.agent.rig import NODE, Rig, running

MEMORY, COMPUTE = "bayplan.dev/gpu-memory-mib", "bayplan.dev/gpu-compute-percent"


def amounts(rig: Rig, which: str) -> dict[str, str]:
    found: dict[str, Any] = rig.eyes.objects.get(("Node", NODE), {}).get("status", {})
    return {name: str(each) for name, each in (found.get(which) or {}).items()}


async def until_amounts(rig: Rig, memory: str, compute: str) -> None:
    wanted = {MEMORY: memory, COMPUTE: compute}
    await rig.eyes.until(
        lambda: all(
            wanted.items() <= amounts(rig, which).items() for which in ("capacity", "allocatable")
        )
    )


async def test_the_inventory_and_the_amounts_are_published(folder: Path) -> None:
    async with running(folder) as rig:
        await until_amounts(rig, "65536", "400")

        found = read_inventory(rig.annotations(NODE, "Node")[INVENTORY])
        assert found == rig.source.discover()
        assert rig.agent.counts.published == 2


async def test_what_a_kubelet_zeroes_is_written_again(folder: Path) -> None:
    async with running(folder) as rig:
        await until_amounts(rig, "65536", "400")
        zero = {MEMORY: "0", COMPUTE: "0"}
        patch = {"status": {"capacity": {**zero, "cpu": "8"}, "allocatable": zero}}

        await rig.ask("PATCH", NODES.path(name=NODE, sub="status"), patch)

        await rig.eyes.until(lambda: "cpu" in amounts(rig, "capacity"))
        await until_amounts(rig, "65536", "400")
        assert amounts(rig, "capacity")["cpu"] == "8"
        for i, which in enumerate(("capacity", "allocatable")):
            mark = {"cpu": str(i)}
            await rig.ask(
                "PATCH", NODES.path(name=NODE, sub="status"), {"status": {which: zero | mark}}
            )
            await rig.eyes.until(partial(_shows, rig, which, mark))
            await until_amounts(rig, "65536", "400")


def _shows(rig: Rig, which: str, wanted: dict[str, str]) -> bool:
    return wanted.items() <= amounts(rig, which).items()


async def test_an_annotation_that_is_removed_or_changed_is_written_again(folder: Path) -> None:
    async with running(folder) as rig:
        await until_amounts(rig, "65536", "400")
        for value in (None, "forged"):
            mine = {"annotations": {INVENTORY: value, "example.com/mine": str(value)}}
            await rig.ask("PATCH", NODES.path(name=NODE), {"metadata": mine})
            await rig.eyes.until(
                lambda v=value: rig.annotations(NODE, "Node").get("example.com/mine") == str(v)  # type: ignore[misc]
            )
            await rig.eyes.until(
                lambda: isinstance(
                    read_inventory(rig.annotations(NODE, "Node").get(INVENTORY, "")), Inventory
                )
            )


async def test_devices_vanish_visibly_also_over_a_restart(folder: Path) -> None:
    file = folder / "inventory.json"
    device = {"id": "a", "index": 0, "memoryMib": 1000}
    file.write_text(json.dumps({"classes": {"nvidia": {"devices": [device]}}}))
    async with running(folder, FileSource(file, Vendors())) as rig:
        await until_amounts(rig, "1k", "100")
        await rig.stop_agent()
        file.write_text("{}")
        await rig.start_agent()

        await until_amounts(rig, "0", "0")
        found = read_inventory(rig.annotations(NODE, "Node")[INVENTORY])
        assert found == Inventory({"nvidia": Devices(())})


async def test_a_node_that_comes_later_is_told_then(folder: Path) -> None:
    async with running(folder, node=False) as rig:
        await rig.kubelet.until(lambda: bool(rig.kubelet.devices))
        await rig.ask("POST", NODES.path(), {"metadata": {"name": NODE}})
        await until_amounts(rig, "65536", "400")


async def test_a_node_that_is_made_again_is_told_again(folder: Path) -> None:
    async with running(folder) as rig:
        await until_amounts(rig, "65536", "400")
        await rig.ask("DELETE", NODES.path(name=NODE))
        await rig.until(lambda: not rig.agent.is_ready)
        await rig.ask("POST", NODES.path(), {"metadata": {"name": NODE}})
        await until_amounts(rig, "65536", "400")
        assert INVENTORY in rig.annotations(NODE, "Node")


async def test_two_who_disagree_write_ever_less_often(folder: Path) -> None:
    zero = {MEMORY: "0"}
    async with running(folder) as rig:
        await until_amounts(rig, "65536", "400")
        before, began = rig.agent.counts.published, time.monotonic()
        for _ in range(4):
            await rig.ask(
                "PATCH", NODES.path(name=NODE, sub="status"), {"status": {"capacity": zero}}
            )
            await rig.eyes.until(lambda: _shows(rig, "capacity", zero))
            await until_amounts(rig, "65536", "400")
        assert rig.agent.counts.published == before + 4
        assert time.monotonic() - began > 0.1 + 0.2 + 0.4


async def test_a_lasting_no_is_not_asked_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    async def refused(self: Publisher, sub: str, content: object) -> None:
        tries.append(time.monotonic())
        raise ApiError(403, "Forbidden", "no")

    monkeypatch.setattr(Publisher, "_patch", refused)
    async with running(folder) as rig:
        await rig.until(lambda: len(tries) == 4)
        assert tries[3] - tries[0] > 0.1 + 0.2 + 0.4
        assert rig.agent.counts.troubles == 1
        assert not rig.agent.is_ready


async def test_what_pods_hold_of_sick_cards_stays_until_they_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that restarts ends a running pod for whose request there is not enough."""
    monkeypatch.setattr(publish, "LOOK_S", 0.05)
    file = folder / "inventory.json"
    card = {"id": "a", "index": 0, "memoryMib": 1000}

    def says(**more: Any) -> None:
        file.write_text(json.dumps({"classes": {"nvidia": {"devices": [card | more]}}}))

    says()
    async with running(folder, FileSource(file, Vendors())) as rig:
        part = Held("main", MEMORY, NODE, (HeldDevice("a", 0, 600),))
        await rig.add_pod("p", 0)
        await rig.bind("p", {ASSIGNMENT: write_assignment(Assignment(NODE, (part,)))})
        await until_amounts(rig, "1k", "100")
        says(healthy=False)
        await until_amounts(rig, "600", "0")
        file.write_text("{}")
        await rig.eyes.until(lambda: '"devices":[]' in rig.annotations(NODE, "Node")[INVENTORY])
        await until_amounts(rig, "600", "0")
        await rig.delete("p")
        await until_amounts(rig, "0", "0")


def test_only_healthy_devices_count_and_memory_is_in_the_unit() -> None:
    resources = (
        Resource("x/gib", "memory", unit_mib=1024, published=True),
        Resource("x/percent", "compute", published=True),
        Resource("x/dev"),
    )
    devices = Devices(
        (Device("a", 0, 1500), Device("b", 1, 4096), Device("c", 2, 9999, healthy=False))
    )

    found = totals(Inventory({"x": devices}), Vendors((DeviceClass("x", resources),)))

    assert found == {"x/gib": 5, "x/percent": 200}


def test_cores_that_are_published_count_by_their_own_numbers() -> None:
    """Core 1 is one of the healthy device 0, and no part of the sick device 1."""
    core = Resource("x/core", "core", published=True)
    vendors = Vendors((DeviceClass("x", (core,)),))
    devices = Devices((Device("0", 0, cores=2), Device("1", 1, cores=2, healthy=False)))
    held = [Held("main", "x/core", NODE, (HeldDevice("1", 1, 1), HeldDevice("3", 3, 1)))]

    assert totals(Inventory({"x": devices}), vendors, held) == {"x/core": 2 + 1}


def test_what_is_left_beside_all_requests_is_left_on_healthy_cards() -> None:
    gib = Resource("x/gib", "memory", unit_mib=1024, published=True)
    devices = Devices((Device("well", 0, 8192), Device("sick", 1, 8192, healthy=False)))
    held = [
        Held("main", "x/gib", NODE, (HeldDevice("well", 0, 3),)),
        Held("main", "x/gib", NODE, (HeldDevice("sick", 1, 5),)),
        Held("main", "x/gib", NODE, (HeldDevice("gone", 2, 2),)),
        Held("main", "x/other", NODE, (HeldDevice("sick", 1, 100),)),
    ]

    found = totals(Inventory({"x": devices}), Vendors((DeviceClass("x", (gib,)),)), held)

    assert found["x/gib"] - (3 + 5 + 2) == 8 - 3
