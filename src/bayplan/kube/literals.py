"""Python literals as others write them into annotations: read, never evaluated.

Only what a `repr` of plain data has: dicts, lists, tuples, strings, numbers, nan and inf, True,
False and None, and JSON's words for these; of NumPy the scalars, as `np.int64(5)`. There are no
other names or calls, no operators or bytes. Size, depth and the length of numbers are bounded
before anything is made, so hostile text costs no more than good text.
"""

import re
from typing import Any

MOST_CHARACTERS = 16_384  # a profiler's dict has some 200
MOST_DEPTH = 4  # a dict with a list of tuples has 3
MOST_TOKENS = 2_048  # one of 16 processes has 130; each takes a microsecond of the scheduler's loop
MOST_DIGITS = 15  # before the point; larger numbers are no measure of anything
LONGEST_NUMBER = 32  # characters; no float that Python prints has more than 24

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<numpy>np\.(?:u?int|float)\d{1,3}\()?
      (?P<number>[-+]?(?:
        (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,2})?|nan|inf|NaN|Infinity
      ))(?![\w.])(?(numpy)\))
    | (?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    | (?P<word>True|False|None|true|false|null|np\.True_|np\.False_)\b
    | (?P<mark>[][(){},:])
    )""",
    re.VERBOSE | re.ASCII,
)
_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}
_WORDS |= {"np.True_": True, "np.False_": False}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "/": "/", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPES |= {"b": "\b", "f": "\f"}
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class NoLiteral(ValueError):
    """Text that is no plain data, and why."""


def parse(text: str) -> Any:
    """The value, made of dicts, lists, strings, numbers, booleans and None; a tuple is a list."""
    if len(text) > MOST_CHARACTERS:
        raise NoLiteral(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text.rstrip(), 0
        self._left = MOST_TOKENS
        self._ahead: tuple[str, str] | None = None  # a token that was looked at, but not taken

    def value(self, depth: int) -> Any:
        kind, token = self._next()
        if kind == "number":
            return _number(token)
        if kind == "text":
            return _string(token)
        if kind == "word":
            return _WORDS[token]
        if token not in _CLOSING:
            raise self._wrong()
        if depth == MOST_DEPTH:
            raise NoLiteral(f"it is nested deeper than {MOST_DEPTH}")
        return self._dict(depth) if token == "{" else self._list(_CLOSING[token], depth)

    def end(self) -> None:
        if self._at != len(self._text):
            raise self._wrong()

    def _list(self, closing: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._closes(closing):
            found.append(self.value(depth + 1))
            self._comma(closing)
        return found

    def _dict(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._closes("}"):
            kind, token = self._next()
            if kind != "text" or self._next()[1] != ":":
                raise self._wrong()
            found[_string(token)] = self.value(depth + 1)
            self._comma("}")
        return found

    def _closes(self, closing: str) -> bool:
        kind, token = self._peek()
        if kind == "mark" and token == closing:
            self._next()
            return True
        return False

    def _comma(self, closing: str) -> None:
        kind, token = self._peek()
        if kind == "mark" and token == ",":
            self._next()
        elif kind != "mark" or token != closing:
            raise self._wrong()

    def _next(self) -> tuple[str, str]:
        token, self._ahead = self._peek(), None
        return token

    def _peek(self) -> tuple[str, str]:
        if self._ahead is None:
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                raise self._wrong()
            if not self._left:
                raise NoLiteral(f"it has more than {MOST_TOKENS} parts")
            self._left -= 1
            self._at = found.end()
            assert found.lastgroup is not None
            self._ahead = found.lastgroup, found[found.lastgroup]
        return self._ahead

    def _wrong(self) -> NoLiteral:
        return NoLiteral(f"it is no plain Python or JSON value, from character {self._at + 1} on")


def _number(token: str) -> int | float:
    whole = token.partition(".")[0].lstrip("+-")
    if len(whole) > MOST_DIGITS or len(token) > LONGEST_NUMBER:
        raise NoLiteral(f"it has a number of more than {MOST_DIGITS} digits")
    try:
        return int(token)
    except ValueError:
        return float(token)


def _string(token: str) -> str:
    """JSON escapes the halves of a pair; one without the other has no UTF-8 and becomes U+FFFD."""
    text = _ESCAPE.sub(_escaped, token[1:-1])
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(found: re.Match[str]) -> str:
    if len(found[1]) > 1:
        return chr(int(found[1][1:], 16))
    if found[1] not in _ESCAPES:
        raise NoLiteral("it has an escape that is not read")
    return _ESCAPES[found[1]]
