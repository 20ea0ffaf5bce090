"""Rows by name, many at once, as a dict would find them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.state.nameindex import UNKNOWN, NameIndex

NAMES = st.text("abc-", max_size=4)


def crowded(name: str) -> int:
    """Few slots, and neighbours that are wanted too; other names have other hashes."""
    return (int.from_bytes(name.encode()) << 3) | (len(name) & 1)


def shared(name: str) -> int:
    """Several names have one hash."""
    return len(name)


@pytest.mark.parametrize("hash_of", [hash, crowded])
@given(known=st.sets(NAMES, max_size=60), asked=st.lists(NAMES, max_size=40), data=st.data())
def test_every_name_is_found_or_is_not_known(
    hash_of: Callable[[str], int], known: set[str], asked: list[str], data: st.DataObject
) -> None:
    numbers = data.draw(st.permutations(range(len(known))))
    rows = dict(zip(sorted(known), numbers, strict=True))
    index = NameIndex(rows, hash_of)
    names = [*asked, *rows]
    assert index.rows(names).tolist() == [rows.get(name, UNKNOWN) for name in names]


@given(known=st.sets(NAMES, max_size=20))
def test_names_that_are_known_are_told_apart_whatever_their_hashes_are(known: set[str]) -> None:
    rows = {name: row for row, name in enumerate(sorted(known))}
    assert NameIndex(rows, shared).rows([*rows]).tolist() == [*rows.values()]


def test_nobody_is_asked_about_and_nobody_is_known() -> None:
    assert NameIndex({"a": 0}).rows([]).tolist() == []
    assert NameIndex({}).rows(["a", ""]).tolist() == [UNKNOWN, UNKNOWN]
