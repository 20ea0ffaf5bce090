"""The ring of changed rows against a list that forgets nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.state.arrays import RowLog


class Small(RowLog):
    SIZE = 8


ROWS = st.integers(0, 99)


@given(st.lists(st.one_of(ROWS, st.lists(ROWS, max_size=20)), max_size=30))
def test_whoever_has_not_fallen_behind_reads_what_was_written(
    writes: list[int | list[int]],
) -> None:
    log, written = Small(), list[int]()
    for write in writes:
        if isinstance(write, int):
            log.append(write)
            written.append(write)
        else:
            log.extend(np.array(write, dtype=np.intp))
            written += write

        assert log.head == len(written)
        for position in range(len(written) + 1):
            rows = log.since(position)
            if len(written) - position > Small.SIZE:
                assert rows is None
            else:
                assert rows is not None
                assert rows.tolist() == written[position:]
