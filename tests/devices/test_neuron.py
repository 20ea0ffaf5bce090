"""Annotations in the words of Neuron's own extension, and that they are read back as they were."""

import pytest
from msgspec.structs import replace

from bayplan.core.model.devices import Held, HeldDevice
from bayplan.core.model.dialects import neuron_pod
from bayplan.core.model.neuron import annotations_of_neuron
from bayplan.core.model.vendors import NEURON, NVIDIA, DeviceClass, Resource, Vendors

DEVICE, ALIAS, CORE = (resource.name for resource in NEURON.resources)
WALL = 1_790_000_000.5
GIVEN = {"NEURON_ALLOCATED": "false", "NEURON_ALLOC_TIME": "1790000000500000000"}


def held(resource: str, *numbers: int, container: str = "main") -> Held:
    devices = tuple(HeldDevice(f"id-{number}", number, 1) for number in numbers)
    return Held(container, resource, "n1", devices)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (
            [held(DEVICE, 11, 9, 10)],
            {"AWS_NEURON_IDS": "9,10,11", "NEURON_RESOURCE_TYPE": DEVICE, "NEURON_DEVS": "9,10,11"},
        ),
        (
            [held(ALIAS, 0)],
            {"AWS_NEURON_IDS": "0", "NEURON_RESOURCE_TYPE": ALIAS, "NEURON_DEVS": "0"},
        ),
        (
            [held(CORE, 4, 5)],
            {"AWS_NEURON_IDS": "4,5", "NEURON_RESOURCE_TYPE": CORE, "NEURON_CORES": "4,5"},
        ),
        (
            [held(CORE, 4, 5), held(DEVICE, 0, 1)],
            {
                "AWS_NEURON_IDS": "0,1",
                "NEURON_RESOURCE_TYPE": DEVICE,
                "NEURON_DEVS": "0,1",
                "NEURON_CORES": "4,5",
            },
        ),
        (
            [held(DEVICE, 2, 3, container="init"), held(DEVICE, 3), held(DEVICE, 1, container="b")],
            {"AWS_NEURON_IDS": "1,2,3", "NEURON_RESOURCE_TYPE": DEVICE, "NEURON_DEVS": "1,2,3"},
        ),
    ],
    ids=["devices", "the old name", "cores", "both", "several containers"],
)
def test_what_is_written(entries: list[Held], wanted: dict[str, str]) -> None:
    found = annotations_of_neuron(entries, Vendors(), WALL)

    assert found == wanted | GIVEN
    for key, by_core in (("NEURON_DEVS", False), ("NEURON_CORES", True)):
        if key in wanted:
            numbers = tuple(map(int, wanted[key].split(",")))
            assert (
                neuron_pod(
                    found,
                    by_core=by_core,
                    both="NEURON_DEVS" in wanted and "NEURON_CORES" in wanted,
                )
                == numbers
            )


def test_nothing_is_written_of_other_devices() -> None:
    gpu = held(NVIDIA.resources[0].name, 0)

    assert annotations_of_neuron([], Vendors(), WALL) == {}
    assert annotations_of_neuron([gpu, held("example.com/npu", 1)], Vendors(), WALL) == {}
    found = annotations_of_neuron([gpu, held(DEVICE, 7)], Vendors(), WALL)
    assert found["AWS_NEURON_IDS"] == found["NEURON_DEVS"] == "7"


def test_the_dialect_decides_and_not_the_name() -> None:
    other = DeviceClass("npu", (Resource("x.com/npu"),), dialects=("neuron",))
    vendors = Vendors((replace(NEURON, dialects=()), other))

    assert annotations_of_neuron([held(DEVICE, 0)], vendors, WALL) == {}
    assert annotations_of_neuron([held("x.com/npu", 3)], vendors, WALL)["NEURON_DEVS"] == "3"
