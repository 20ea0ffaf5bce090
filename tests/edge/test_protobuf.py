"""Kubernetes' protobuf, as kubectl sends it: bytes in, JSON out; bad bytes too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.local.problems import Problem
from bayplan.local.protobuf import decoded

# kubectl create configmap a --from-literal=a=b
CONFIG_MAP = bytes.fromhex(
    "6b3873000a0f0a02763112 09436f6e6669674d6170121b0a110a01611200"
    "1a0022002a003200380042 0012060a016112016 21a002200".replace(" ", "")
)


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        value &= (1 << 64) - 1
        return bytes([number << 3]) + varint(value)
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def varint(value: int) -> bytes:
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def sent(version: str, kind: str, raw: bytes) -> bytes:
    about = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, about) + field(2, raw)


def test_what_kubectl_sends() -> None:
    assert decoded(CONFIG_MAP) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"a": "b"},
    }


def test_zero_is_kept_where_it_means_something() -> None:
    options = field(1, 0) + field(2, field(1, b"some-uid"))
    eviction = field(1, field(1, b"train") + field(3, b"default")) + field(2, options)

    assert decoded(sent("policy/v1", "Eviction", eviction)) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "train", "namespace": "default"},
        "deleteOptions": {"gracePeriodSeconds": 0, "preconditions": {"uid": "some-uid"}},
    }


def test_numbers_below_zero_and_either_form() -> None:
    spec = field(1, field(1, 1) + field(2, 0) + field(3, b"50%")) + field(3, field(2, 2))
    budget = decoded(sent("policy/v1", "PodDisruptionBudget", field(2, spec)))
    priority = decoded(sent("scheduling.k8s.io/v1", "PriorityClass", field(2, -5)))

    assert budget["spec"] == {"minAvailable": "50%", "maxUnavailable": 2}
    assert priority["value"] == -5


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(Problem, match="cannot read a Pod that comes in protobuf"):
        decoded(sent("v1", "Pod", b""))
    with pytest.raises(Problem, match="cannot read field 9 of ConfigMap"):
        decoded(sent("v1", "ConfigMap", field(9, b"new")))


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"k8s\x00\x0a", b"k8s\x00" + b"\xff" * 20, CONFIG_MAP[:-1] + b"\x07"]
)
def test_bytes_that_are_none(body: bytes) -> None:
    with pytest.raises(Problem):
        decoded(body)


@given(st.integers(0, len(CONFIG_MAP) - 1), st.binary(max_size=4))
def test_any_bytes_give_an_object_or_a_problem(at: int, instead: bytes) -> None:
    try:
        assert isinstance(decoded(CONFIG_MAP[:at] + instead + CONFIG_MAP[at + 1 :]), dict)
    except Problem as problem:
        assert problem.code in (400, 501)  # noqa: PT017
