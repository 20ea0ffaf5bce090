"""Lists in pages: all pages of one list show the same moment."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from msgspec import Struct

from bayplan.local.problems import (
    Cause,
    Problem,
    bad_request,
    forbidden,
    invalid_options,
    unsupported,
)
from bayplan.local.store import Key, Stored

_MOST_LISTS = 16  # that are read in pages at the same time
_MOST_REVISION = 2**64 - 1
_CURRENT = "0"  # no list's number: go on with what there is now


def check(params: Mapping[str, str]) -> None:
    """Which revision a list may be as of."""
    since, match = params.get("resourceVersion", ""), params.get("resourceVersionMatch", "")
    causes = []
    if params.get("sendInitialEvents"):
        causes.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match and not since:
        text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append(forbidden("resourceVersionMatch", text))
    if match and params.get("continue"):
        text = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden("resourceVersionMatch", text))
    if match not in ("", "Exact", "NotOlderThan"):
        text = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
        causes.append(Cause("Unsupported", "resourceVersionMatch", text))
    if match == "Exact" and since == "0":
        text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append(forbidden("resourceVersionMatch", text))
    if causes:
        raise invalid_options(causes)
    if since and (not since.isdecimal() or int(since) > _MOST_REVISION):
        wrong = "value out of range" if since.isdecimal() else "invalid syntax"
        why = f'strconv.ParseUint: parsing "{since}": {wrong}'
        text = f'resourceVersion: Invalid value: "{since}": {why}'
        raise bad_request(f"invalid resource version: {text}")
    if match == "Exact":
        raise unsupported("the embedded API cannot list as of an exact resourceVersion")


def check_watch(params: Mapping[str, str]) -> bool | None:
    """Whether a watch begins with what there is: as it says, or as its revision says."""
    said, match = params.get("sendInitialEvents", ""), params.get("resourceVersionMatch", "")
    if said and match != "NotOlderThan":
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid_options([forbidden("resourceVersionMatch", text)])
    if match and not said:
        text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise invalid_options([forbidden("resourceVersionMatch", text)])
    return said.lower() in ("true", "1") if said else None


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
        number, items, at = "", [], 0
        if token:
            number, start, after = _read(token)
            if number == _CURRENT:
                items = [stored for stored in find() if _key(stored) > after]
                number = ""
            elif number in self._lists:
                (items, revision), at = self._lists[number], start
            else:
                raise _expired(f"{_CURRENT}.0.{after[0]}/{after[1]}")
        else:
            items = find()
        if not limit or at + limit >= len(items):
            return Page(items[at:], revision)
        if not number:
            self._count += 1
            number = str(self._count)
            self._lists[number] = (items, revision)
            while len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
        end = at + limit
        after = _key(items[end - 1])
        following = f"{number}.{end}.{after[0]}/{after[1]}"
        return Page(items[at:end], revision, following, len(items) - end)

    def forget(self) -> None:
        """As after a compaction."""
        self._lists.clear()


def _read(token: str) -> tuple[str, int, Key]:
    """A list's number, how much of it was read, and the last that was."""
    number, _, rest = token.partition(".")
    start, _, after = rest.partition(".")
    namespace, slash, name = after.partition("/")
    if not number.isdecimal() or not start.isdecimal() or not slash:
        raise bad_request(f"invalid continue token: continue key is not valid: {token}")
    return number, int(start), (namespace, name)


def _key(stored: Stored) -> Key:
    metadata = stored.value["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _expired(token: str) -> Problem:
    return Problem(
        410,
        "Expired",
        "The provided continue parameter is too old to display a consistent list result. You can "
        "start a new list without the continue parameter, or use the continue token in this "
        "response to retrieve the remainder of the results. Continuing with the provided token "
        "results in an inconsistent list - objects that were created, modified, or deleted between "
        "the time the first chunk was returned and now may show up in the list.",
        metadata={"continue": token},
    )
