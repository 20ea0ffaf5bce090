"""How long ago, in the words that kubectl and the API server share."""

import pytest

from bayplan.local.since import duration, since

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (9 * MINUTE + 59, "9m59s"),
        (10 * MINUTE + 59, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR, "3h"),
        (7 * HOUR + 5 * MINUTE, "7h5m"),
        (8 * HOUR + 5 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (7 * DAY + 3 * HOUR, "7d3h"),
        (8 * DAY + 3 * HOUR, "8d"),
        (729 * DAY, "729d"),
        (730 * DAY, "2y"),
        (1000 * DAY, "2y270d"),
        (3000 * DAY, "8y"),
    ],
)
def test_two_units_at_most(seconds: int, words: str) -> None:
    assert duration(seconds) == words


def test_times_that_say_nothing() -> None:
    assert since(None, 0.0) == "<unknown>"
    assert since("1970-01-01T00:00:01Z", 0.0) == "0s"
    assert since("1970-01-01T00:01:00Z", 0.0) == "<invalid>"
