"""The fingerprint of a set of pods that exporters of NUMA zones publish: `pfp0v001` and a hash.

Each pod's hash is the XXH64 of its name, seeded with that of its namespace; the fingerprint is the
XXH64 of the sorted hashes. Nothing here is a secret's hash.
"""

from collections.abc import Iterable
from functools import lru_cache
from struct import unpack_from

PREFIX = "pfp0v001"
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Of pods by namespace and name, in whatever order."""
    hashes = sorted(_of_pod(namespace, name) for namespace, name in pods)
    return f"{PREFIX}{xxh64(b''.join(each.to_bytes(8, 'little') for each in hashes)):016x}"


@lru_cache(maxsize=65_536)
def _of_pod(namespace: str, name: str) -> int:
    return xxh64(name.encode(), xxh64(namespace.encode()))


def xxh64(data: bytes, seed: int = 0) -> int:
    size, at = len(data), 0
    if size >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for at in range(0, size - 31, 32):
            words = unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        at = size // 32 * 32
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        total = sum(_turned(lane, by) for lane, by in turns) & _MASK
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        total = (seed + _P5) & _MASK
    total = (total + size) & _MASK
    while at <= size - 8:
        (word,) = unpack_from("<Q", data, at)
        total = (_turned(total ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        at += 8
    if at <= size - 4:
        (word,) = unpack_from("<I", data, at)
        total = (_turned(total ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        total = _turned(total ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    total = (total ^ total >> 33) * _P2 & _MASK
    total = (total ^ total >> 29) * _P3 & _MASK
    return total ^ total >> 32


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _turned(number: int, by: int) -> int:
    number &= _MASK
    return (number << by | number >> 64 - by) & _MASK
