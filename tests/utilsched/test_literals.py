"""Python literals: read as Python reads them, or refused; never evaluated, always in time."""

import ast
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.kube import literals
from bayplan.kube.literals import MOST_CHARACTERS, MOST_DEPTH, NoLiteral, parse

PLAIN = st.one_of(
    st.integers(-(10**14), 10**14),
    st.booleans(),
    st.none(),
    st.text(alphabet="".join(map(chr, range(32, 127))), max_size=8),
)
KEYS = st.text(alphabet="abc_-", max_size=6)
DATA = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    below = max((depth(each) for each in inner), default=0)
    return below + isinstance(value, dict | list)


@given(DATA)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    if depth(value) <= MOST_DEPTH:
        assert parse(repr(value)) == value


@given(st.text(max_size=200) | st.text(alphabet="{}[]()'\",:\\ 10e.+-TrueNon", max_size=60))
def test_any_text_is_read_as_python_reads_it_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except NoLiteral:
        return
    ours = ("true", "false", "null", "nan", "inf", "NaN", "Infinity", "np.", "\\u", "\\/")
    if not any(each in text for each in ours):
        assert found == tuples_as_lists(ast.literal_eval(text.strip()))


def tuples_as_lists(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [tuples_as_lists(each) for each in value]
    if isinstance(value, dict):
        return {key: tuples_as_lists(each) for key, each in value.items()}
    return value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "{'a': __import__('os')}",
        "{'a': print('evaluated')}",
        "{'a': 1 if True else 2}",
        "{'a': 2 ** 999999999}",
        "{'a': 1 + 1}",
        "{'a': [x for x in 'ab']}",
        "{'a': lambda: 0}",
        "{'a': f'{1}'}",
        "{'a': b'bytes'}",
        "{'a': 1e999}",
        "{'a': nano}",
        "{'a': np.int64(5}",
        "{'a': np.int64('5')}",
        "{'a': np.int64(np.int64(5))}",
        "{'a': np.load(5)}",
        "{nan: 1}",
        "{'a': '\\u12'}",
        "{'a': 1j}",
        "{'a': 0x10}",
        "{1: 2}",
        "{'a'}",
        "{'a': 1} {'b': 2}",
        "{'a': '\\x41'}",
        "{'a': " + "9" * 16 + "}",
        "{'a': " + "9" * 40 + "}",
        "{'a': 0." + "9" * 40 + "}",
        "{'a': 'never ends",
        "[" * 5_000 + "]" * 5_000,
        "{'a':" * 2_000 + "1" + "}" * 2_000,
        "",
        "   ",
    ],
    ids=lambda text: text[:24],
)
def test_what_is_no_plain_data_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # short, because other threads import what they need
        for name in ("eval", "exec", "compile", "__import__"):
            patch.setattr(f"builtins.{name}", forbidden)
        with pytest.raises(NoLiteral):
            parse(text)


def forbidden(*_: Any) -> None:
    raise AssertionError("it was evaluated")


@pytest.mark.parametrize(
    "piece", ["{'a': 1}", "[", "'", "((", "1", " ", "\\", "{'a':'", "\ud800", "'\\"]
)
@pytest.mark.parametrize("size", [MOST_CHARACTERS, 1 << 20])
def test_a_megabyte_costs_no_more_than_a_moment(piece: str, size: int) -> None:
    text = (piece * (size // len(piece) + 1))[:size]
    began = time.process_time()
    with pytest.raises(NoLiteral):
        parse(text)
    assert time.process_time() - began < 0.5  # 16 KiB take some 20 ms


@pytest.mark.parametrize("digits", ["1" * 16_000, "1." + "1" * 16_000, "np.int64(" + "1" * 16_000])
def test_digits_that_lead_to_nothing_cost_no_more(digits: str) -> None:
    """They took nine seconds: each way to cut them in two was tried."""
    began = time.process_time()
    with pytest.raises(NoLiteral):
        parse(digits + "x")
    assert time.process_time() - began < 0.5


def test_floats_that_are_no_number_are_read_as_python_and_json_print_them() -> None:
    values = [float("nan"), float("inf"), float("-inf")]
    for text in (repr(values), json.dumps(values), "[np.float64(nan), np.float32(inf), -inf]"):
        assert repr(parse(text)) == "[nan, inf, -inf]"


@given(st.floats(-1e14, 1e14).filter(lambda value: value == 0 or abs(value) > 1e-99))
def test_floats_come_back_with_all_the_digits_that_python_prints(value: float) -> None:
    assert parse(f"[{value!r}, np.float64({value!r})]") == [value, value]


def test_numpys_scalars_are_what_they_hold() -> None:
    text = "{'a': np.int64(-5), 'b': [np.float64(0.5), np.uint8(7)], 'c': np.True_, 'd': np.False_}"
    assert parse(text) == {"a": -5, "b": [0.5, 7], "c": True, "d": False}


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=3))
def test_strings_of_json_come_back_with_their_escapes(value: dict[str, str]) -> None:
    text = json.dumps(value)
    assert parse(text) == parse(text.replace("/", "\\/")) == value


@pytest.mark.parametrize("half", ["\\ud800", "\\uDC00", "\\udc00\\ud800", "\ud800"])
def test_half_a_pair_can_be_written_all_the_same(half: str) -> None:
    (found,) = parse(f'{{"a{half}": "b{half}"}}').items()
    assert json.dumps(found, ensure_ascii=False).encode()
    assert (found[0][:2], found[1][:2]) == ("a\ufffd", "b\ufffd")


def test_the_module_can_evaluate_nothing() -> None:
    names = set(vars(literals)) | set(parse.__code__.co_names)
    assert not names & {"ast", "eval", "exec", "compile", "literal_eval", "pickle", "yaml"}


def test_many_small_parts_are_too_many() -> None:
    """They are what takes time: 16,384 characters of them took a twentieth of a second."""
    assert len(parse("[" + "1," * 1_023 + "]")) == 1_023
    with pytest.raises(NoLiteral, match="more than 2048 parts"):
        parse("[" + "1," * 1_024 + "]")
