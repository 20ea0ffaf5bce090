"""Other software's annotations: what they say is read, and what they garble is unknown."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model import dialects
from bayplan.core.model.devices import (
    Device,
    Devices,
    Inventory,
    Unknown,
    read_inventory,
    write_inventory,
)
from bayplan.core.model.dialects import GIB, MIB, NODES_OWN, Given

READERS = (
    dialects.alnair_node,
    dialects.alnair_pod,
    dialects.gpushare_pod,
    dialects.hami_node,
    dialects.hami_pod,
)
KEYS = (
    dialects.ALNAIR_COUNT,
    dialects.ALNAIR_UUIDS,
    *dialects.ALNAIR_SIZES,
    dialects.ALNAIR_HELD,
    dialects.GPUSHARE_INDEX,
    dialects.GPUSHARE_AMOUNT,
    dialects.HAMI_NODE,
    dialects.HAMI_HELD,
)


def alnair(sizes: str, count: str = "2", uuids: str = "GPU-a,GPU-b", key: int = 0) -> Any:
    said = {dialects.ALNAIR_COUNT: count, dialects.ALNAIR_SIZES[key]: sizes}
    return dialects.alnair_node({**said, **({dialects.ALNAIR_UUIDS: uuids} if uuids else {})})


@pytest.mark.parametrize("key", [0, 1])  # both spellings
def test_alnairs_nodes(key: int) -> None:
    two = Devices((Device("GPU-a", 0, 16_384), Device("GPU-b", 1, 24_576)))
    assert alnair("16,24", key=key) == two
    assert alnair("16", key=key).devices[1].memory_mib == 16_384  # one size for all
    assert [device.id for device in alnair("16,16", uuids="", key=key).devices] == ["0", "1"]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (alnair("16,16,16"), "2 cards, 3 sizes, 2 names"),
        (alnair("16,16", uuids="GPU-a,GPU-a"), "2 cards, 2 sizes, 1 names"),
        (alnair("16,x"), "'x' is no number"),
        (alnair("16,-1"), "'-1' is no number"),
        (alnair("1e3,1e3"), "'1e3' is no number"),
        (alnair("16,²"), "'²' is no number"),
        (alnair("16", count="9" * 40), "is no number"),
        (dialects.alnair_node({dialects.ALNAIR_COUNT: "2"}), "are not both there"),
    ],
)
def test_an_alnair_node_that_makes_no_sense_is_unknown(found: Any, why: str) -> None:
    assert isinstance(found, Unknown)
    assert why in found.why


def test_what_an_alnair_pod_holds() -> None:
    said = {dialects.ALNAIR_HELD: "GPU-a_0,GPU-a_3,GPU-b_11"}
    assert dialects.alnair_pod(said) == (Given("GPU-a", 2, GIB), Given("GPU-b", 1, GIB))
    for garbled in ("", "GPU-a", "_1", "GPU-a_x", "GPU-a_"):
        assert isinstance(dialects.alnair_pod({dialects.ALNAIR_HELD: garbled}), Unknown)


def test_what_a_gpushare_pod_holds() -> None:
    said = {dialects.GPUSHARE_INDEX: "1", dialects.GPUSHARE_AMOUNT: "3"}
    assert dialects.gpushare_pod(said) == (Given("#1", 3, NODES_OWN),)
    for change in ({dialects.GPUSHARE_INDEX: "-1"}, {dialects.GPUSHARE_AMOUNT: "0"}):
        assert isinstance(dialects.gpushare_pod({**said, **change}), Unknown)
    assert isinstance(dialects.gpushare_pod({dialects.GPUSHARE_INDEX: "1"}), Unknown)


def test_hamis_nodes() -> None:
    said = "GPU-a,10,32768,100,NVIDIA-V100,0,true:GPU-b,10,32768,100,NVIDIA-V100,1,false:"
    found = dialects.hami_node({dialects.HAMI_NODE: said})
    assert found == Devices(
        (
            Device("GPU-a", 0, 32_768, 0, True, "NVIDIA-V100"),
            Device("GPU-b", 1, 32_768, 1, False, "NVIDIA-V100"),
        )
    )
    for garbled in ("GPU-a,10", "GPU-a,10,x,100,V,0,true", "GPU-a,10,1,100,V,0,maybe", said * 2):
        assert isinstance(dialects.hami_node({dialects.HAMI_NODE: garbled}), Unknown)


def test_what_a_hami_pod_holds() -> None:
    said = "GPU-a,NVIDIA,3000,0:;GPU-a,NVIDIA,1000,30:GPU-b,NVIDIA,2000,0:;"
    found = dialects.hami_pod({dialects.HAMI_HELD: said})
    assert found == (Given("GPU-a", 4000, MIB, 30), Given("GPU-b", 2000, MIB))
    erased = {dialects.HAMI_HELD: said, dialects.HAMI_TO_COME: ";"}
    assert dialects.hami_pod(erased) == found  # they empty it while containers start
    assert dialects.hami_pod({dialects.HAMI_TO_COME: said}) == found
    assert dialects.hami_pod({dialects.HAMI_HELD: ";;"}) is None  # no container has a card
    for garbled in ("GPU-a", "GPU-a,NVIDIA,x,0:", ",NVIDIA,1,0:"):
        assert isinstance(dialects.hami_pod({dialects.HAMI_HELD: garbled}), Unknown)


@pytest.mark.parametrize("read", READERS)
def test_who_says_nothing_holds_nothing(read: Callable[[dict[str, str]], Any]) -> None:
    assert read({}) is None
    assert read({"example.com/other": "1"}) is None


texts = st.text("GPU-ab_0123456789,:;.x \n\u0664") | st.text()


@given(st.dictionaries(st.sampled_from(KEYS), texts))
def test_arbitrary_annotations_never_raise_and_give_what_can_be_written(
    annotations: dict[str, str],
) -> None:
    for read in READERS:
        found = read(annotations)
        if isinstance(found, Devices):
            kept = read_inventory(write_inventory(Inventory({"class": found})))
            assert isinstance(kept, Inventory) or len(found.devices) > 256
        elif isinstance(found, tuple):
            assert all(device.amount >= 1 and device.id for device in found)
            assert len({device.id for device in found}) == len(found)
