"""Lists in pages: all pages of one list show the same moment."""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from bayplan.local.problems import expired
from bayplan.local.store import Stored

_MOST_LISTS = 64  # that are read in pages at the same time


class Page(Struct, frozen=True):
    items: list[Stored]
    revision: int
    next: str = ""  # the token of the page after
    left: int = 0


class Pages:
    def __init__(self) -> None:
        self._lists: OrderedDict[str, tuple[list[Stored], int]] = OrderedDict()
        self._count = 0

    def page(self, token: str, limit: int, find: Callable[[], list[Stored]], revision: int) -> Page:
        if token:
            number, _, start = token.partition(".")
            if number not in self._lists or not start.isdigit():
                raise expired(
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter."
                )
            (items, revision), at = self._lists[number], int(start)
        else:
            items, at, number = find(), 0, ""
        if not limit or at + limit >= len(items):
            self._lists.pop(number, None)
            return Page(items[at:], revision)
        if not number:
            self._count += 1
            number = str(self._count)
            self._lists[number] = (items, revision)
            while len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
        end = at + limit
        return Page(items[at:end], revision, f"{number}.{end}", len(items) - end)

    def forget(self) -> None:
        """As after a compaction."""
        self._lists.clear()
