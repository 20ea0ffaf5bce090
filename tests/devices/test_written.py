"""Assignments and inventories as annotations: what is written is read; the rest is unknown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.devices import (
    MOST_BYTES,
    Assignment,
    Device,
    Devices,
    Held,
    HeldDevice,
    Inventory,
    TooLong,
    Unknown,
    read_assignment,
    read_inventory,
    write_assignment,
    write_inventory,
)

ids = st.text("GPU-0123456789abcdef/.é", min_size=1, max_size=12)
held_devices = st.lists(
    st.builds(HeldDevice, ids, st.integers(0, 65_535), st.integers(1, 2**53 - 1)),
    max_size=4,
    unique_by=lambda device: device.id,
).map(tuple)
assignments = st.builds(
    Assignment,
    ids,
    st.lists(
        st.builds(Held, ids, ids, ids, held_devices),
        max_size=3,
        unique_by=lambda held: (held.container, held.resource),
    ).map(tuple),
)
GIVEN: dict[str, Any] = {
    "v": 1,
    "node": "n1",
    "held": [
        {
            "container": "main",
            "resource": "alnair/vgpu-memory",
            "pool": "n1",
            "devices": [{"id": "GPU-5f2c", "index": 0, "amount": 4}],
        }
    ],
}


@given(assignments)
def test_an_assignment_is_read_as_it_was_written(assignment: Assignment) -> None:
    places = [f"{held.container}/{held.resource}" for held in assignment.held]
    if len(set(places)) == len(places):
        assert read_assignment(write_assignment(assignment)) == assignment


def test_the_form_is_the_documented_one() -> None:
    device = HeldDevice("GPU-5f2c", 0, 4)
    held = Held("main", "alnair/vgpu-memory", "n1", (device,))
    written = write_assignment(Assignment("n1", (held,)))
    assert written == (
        '{"held":[{"container":"main","devices":[{"amount":4,"id":"GPU-5f2c","index":0}],'
        '"pool":"n1","resource":"alnair/vgpu-memory"}],"node":"n1","v":1}'
    )
    assert read_assignment(json.dumps(GIVEN)) == Assignment("n1", (held,))


def test_an_assignment_that_is_too_long_is_not_written() -> None:
    devices = tuple(HeldDevice(f"GPU-{i:040d}", i, 1) for i in range(250))
    with pytest.raises(TooLong, match=f"more than {MOST_BYTES}"):
        write_assignment(Assignment("n1", (Held("main", "nvidia.com/gpu", "n1", devices),)))


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The documented assignment with one thing changed."""
    whole: dict[str, Any] = json.loads(json.dumps(GIVEN))
    at: Any = whole
    for step in path[:-1]:
        at = at[step]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return whole


DEVICE = ("held", 0, "devices", 0)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (changed("v", to=2), "version 2; this program reads up to 1"),
        (changed("v", to=0), "version 0"),
        (changed("v", to="1"), "Expected `int`"),
        (changed("v", to=None), "missing required field `v`"),
        (changed("node", to=""), "length >= 1"),
        (changed(*DEVICE, "amount", to=0), "Expected `int` >= 1"),
        (changed(*DEVICE, "amount", to=-4), "Expected `int` >= 1"),
        (changed(*DEVICE, "amount", to=1.5), "Expected `int`"),
        (changed(*DEVICE, "amount", to=10**30), "Expected `int`|Integer value out of range|number"),
        (changed(*DEVICE, "index", to=-1), "Expected `int` >= 0"),
        (changed(*DEVICE, "index", to=True), "Expected `int`"),
        (changed(*DEVICE, "more", to=1), "unknown field `more`"),
        (changed("held", 0, "devices", to=[GIVEN["held"][0]["devices"][0]] * 2), "twice"),
        (changed("held", to=GIVEN["held"] * 2), "main/alnair/vgpu-memory is there twice"),
        (changed("held", to="all"), "Expected `array`"),
    ],
)
def test_what_is_not_an_assignment_is_unknown(written: dict[str, Any], why: str) -> None:
    found = read_assignment(json.dumps(written))
    assert isinstance(found, Unknown)
    assert any(part in found.why for part in why.split("|"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{", '{"v":1}', '{"v":NaN}', '{"v":1e400}', "\ud800", "[" * 100_000),
        '{"v":1,"node":"n","held":[' + " " * MOST_BYTES + "]}",
    ],
)
def test_garbage_is_unknown(text: str) -> None:
    assert isinstance(read_assignment(text), Unknown)
    assert isinstance(read_inventory(text), Unknown)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_arbitrary_json_never_raises(content: Any) -> None:
    for whole in (content, {"v": 1, "held": content, "node": "n"}, {"v": 1, "classes": content}):
        text = json.dumps(whole)
        assert isinstance(read_assignment(text), Assignment | Unknown)
        assert isinstance(read_inventory(text), Inventory | Unknown)


TWO = (Device("GPU-a", 0, 81_920, 0), Device("GPU-b", 1, 40_960, 1, healthy=False, model="A100"))


@pytest.mark.parametrize("links", [(), ((0, 4), (4, 0))])
def test_an_inventory_is_read_as_it_was_written(links: tuple[tuple[int, ...], ...]) -> None:
    inventory = Inventory({"nvidia": Devices(TWO, links), "neuron": Devices(())})
    assert read_inventory(write_inventory(inventory)) == inventory


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (Devices((TWO[0], TWO[0])), "nvidia: id GPU-a is there twice"),
        (Devices((TWO[0], Device("GPU-c", 0))), "nvidia: index 0 is there twice"),
        (Devices(TWO, ((0, 1),)), "nvidia: links are not 2 by 2"),
        (Devices(TWO, ((0, 1), (1,))), "nvidia: links are not 2 by 2"),
        (Devices(TWO, ((0, 1), (2, 0))), "nvidia: links are negative, or differ by direction"),
        (Devices((Device("#0", 0),)), "nvidia: an id begins with # or @"),
        (
            Devices(tuple(Device(str(i), i) for i in range(257))),
            "nvidia: 257 devices or their cores, more than 256",
        ),
    ],
)
def test_an_inventory_that_contradicts_itself_is_unknown(devices: Devices, why: str) -> None:
    assert read_inventory(write_inventory(Inventory({"nvidia": devices}))) == Unknown(why)
