"""What a node says about its devices: the annotation, and the amounts in its status."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from bayplan.agent.inventory import FileSource
from bayplan.agent.publish import totals
from bayplan.core.model.devices import INVENTORY, Device, Devices, Inventory, read_inventory
from bayplan.core.model.vendors import DeviceClass, Resource, Vendors
from bayplan.kube.client import NODES
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
