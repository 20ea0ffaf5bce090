"""Kubernetes quantities ("1.5Gi", "100m", 2e3) as exact integers, in billionths of a unit.

What Kubernetes parses is parsed here, to the same value; nothing is ever printed back. Rounding to
what the scheduler counts comes last: sums are taken over the exact amounts.
"""

import re
from functools import lru_cache

NANO = 10**9
MAX_INT64 = 2**63 - 1

# Counted amounts stop here, 8 Pi, so that neither a thousand of them on one node nor a score's
# percentage of one leaves an int64. kube-scheduler's own arithmetic overflows not far above.
LIMIT = 2**53

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BARE = ("Ki", "Mi", "Gi", "Ti")  # a lone suffix reads as zero, but for these two: Pi, Ei
_LONGEST = 4000  # digits; no amount needs them, and Python refuses to read more
_HIGHEST = 100  # a power of ten that is past every limit, so larger ones need not be exact


class BadQuantity(ValueError):
    """The text is no quantity; the message says which text."""


@lru_cache(maxsize=65_536)
def parse(text: str) -> int:
    """The amount in billionths of a unit, rounded away from zero; as Go's `ParseQuantity`."""
    found = _FORM.fullmatch(text)
    if not text or len(text) > _LONGEST or found is None:
        raise BadQuantity(f"{_short(text)} is not a quantity")
    sign, whole, fraction, suffix = found[1], found[2], found[3] or "", found[4]
    digits = whole + fraction
    number = int(digits or "0")
    if suffix in _BINARY:
        if not digits and suffix not in _BARE:
            raise BadQuantity(f"{_short(text)} is not a quantity: it has no digits")
        nano = _scaled(number << _BINARY[suffix], 9 - len(fraction))
        nano = min(nano, MAX_INT64 * NANO)
    else:
        exponent = _exponent(suffix, text)
        if not digits and exponent < -9:
            raise BadQuantity(f"{_short(text)} is not a quantity: it has no digits")
        nano = _scaled(number, exponent + 9 - len(fraction))
    return -nano if sign == "-" else nano


@lru_cache(maxsize=65_536)
def parse_json(token: bytes) -> int:
    """A quantity as it stands in JSON, quoted or a bare number; null is zero, as in Go."""
    if token == b"null":
        return 0
    if len(token) >= 2 and token[:1] == token[-1:] == b'"':
        token = token[1:-1]
    return parse(token.decode("utf-8", "replace").strip())


def value(nano: int) -> int:
    """Whole units, rounded away from zero."""
    return nano // NANO if nano < 0 else -(-nano // NANO)


def milli(nano: int) -> int:
    """Thousandths, rounded away from zero."""
    return nano // 10**6 if nano < 0 else -(-nano // 10**6)


def counted(name: str, nano: int) -> int:
    """What the scheduler counts: cpu in thousandths, the rest in units, at most LIMIT."""
    return min(milli(nano) if name == "cpu" else value(nano), LIMIT)


def _exponent(suffix: str, text: str) -> int:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    if suffix[0] in "eE" and re.fullmatch(r"[+-]?[0-9]{1,10}", suffix[1:]):
        exponent = int(suffix[1:])
        if -(2**31) <= exponent < 2**31:
            return exponent
    raise BadQuantity(f"{_short(text)} is not a quantity: its suffix is unknown")


def _scaled(number: int, power: int) -> int:
    """`number * 10**power`, rounded up; the power is bounded, for 1e2000000000 is a quantity."""
    if number == 0:
        return 0
    factor: int = 10 ** min(abs(power), _HIGHEST if power >= 0 else 2 * _LONGEST)
    return number * factor if power >= 0 else -(-number // factor)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
