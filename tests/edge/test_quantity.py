"""Quantities read as Kubernetes reads them."""

from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.quantity import (
    LIMIT,
    MAX_INT64,
    NANO,
    BadQuantity,
    counted,
    milli,
    parse,
    parse_json,
    value,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("1", NANO),
        ("+1", NANO),
        ("-1.5", -3 * NANO // 2),
        (".5", NANO // 2),
        ("1.", NANO),
        ("100m", NANO // 10),
        ("1e3", 1000 * NANO),
        ("1E3", 1000 * NANO),
        ("1E", 10**18 * NANO),
        ("2e-1", NANO // 5),
        ("1.5Gi", 3 * 2**29 * NANO),
        ("1k", 1000 * NANO),
        ("1Ki", 1024 * NANO),
        ("0.5n", 1),  # what is asked for is never lost
        ("-0.5n", -1),
        ("1e-30", 1),
        ("0e-30", 0),
        ("9Ei", MAX_INT64 * NANO),  # binary ones are capped, decimal ones are not
        ("-9Ei", -MAX_INT64 * NANO),
        ("9223372036854775808", 2**63 * NANO),
        # oddities that Kubernetes accepts
        ("+", 0),
        (".", 0),
        ("Mi", 0),
        ("m", 0),
        ("e5", 0),
        ("0007", 7 * NANO),
    ],
)
def test_amounts(text: str, nano: int) -> None:
    assert parse(text) == nano


@pytest.mark.parametrize(
    "text",
    [
        *("", " 1", "1 ", "1K", "1ki", "1Mii", "1e", "1e+", "1ee3", "1.2.3", "0x10", "1,5", "1i"),
        *("Pi", "Ei", "--1", "+-1", "1_000", "NaN", "Infinity", "1e99999999999", "one", "1\n"),
        *("e-10", "\u0661"),  # digits are ASCII
    ],
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(BadQuantity, match="is not a quantity"):
        parse(text)


@pytest.mark.parametrize(
    ("token", "nano"),
    [
        (b"1", NANO),
        (b"0.5", NANO // 2),
        (b"1e3", 1000 * NANO),
        (b'"100m"', NANO // 10),
        (b'" 1 "', NANO),
        (b"null", 0),
    ],
)
def test_as_json(token: bytes, nano: int) -> None:
    assert parse_json(token) == nano


@pytest.mark.parametrize("token", [b"true", b"{}", b'""', b'"\\u0031"', b'"\xff"', b"[1]"])
def test_other_json_is_no_quantity(token: bytes) -> None:
    with pytest.raises(BadQuantity):
        parse_json(token)


def test_rounding_is_away_from_zero() -> None:
    assert [value(parse(text)) for text in ("1n", "1.0", "1.1", "-1.1")] == [1, 1, 2, -2]
    assert [milli(parse(text)) for text in ("1n", "1u", "1.0001", "-1u")] == [1, 1, 1001, -1]


def test_what_is_counted_has_a_limit() -> None:
    assert counted("cpu", parse("1500u")) == 2
    assert counted("memory", parse("1500m")) == 2
    assert counted("memory", parse("0.005E")) == 5 * 10**15
    assert counted("cpu", parse("1E")) == counted("memory", parse("1e2000000000")) == LIMIT


def test_absurd_texts_cost_nothing() -> None:
    assert parse("1e-2000000000") == 1
    assert value(parse("1e2000000000")) > LIMIT
    with pytest.raises(BadQuantity):
        parse("9" * 10_000)


@given(
    st.sampled_from(["", "+", "-"]),
    st.decimals(0, 10**12, places=11),
    st.sampled_from([*DECIMAL, *BINARY, "e4", "E-4", "e+2"]),
)
def test_any_amount_is_exact_to_the_nano(sign: str, number: Decimal, suffix: str) -> None:
    if suffix in BINARY:
        scale = Fraction(1024) ** BINARY[suffix]
    else:
        scale = Fraction(10) ** (DECIMAL[suffix] if suffix in DECIMAL else int(suffix[1:]))
    exact = ceil(Fraction(number) * scale * NANO)
    if suffix in BINARY:
        exact = min(exact, MAX_INT64 * NANO)

    assert parse(f"{sign}{number:f}{suffix}") == (-exact if sign == "-" else exact)


@given(st.text(alphabet="+-.0123456789eEinumkKMGTP x", max_size=12))
def test_any_text_is_a_quantity_or_is_not(text: str) -> None:
    with suppress(BadQuantity):
        assert isinstance(parse(text), int)
