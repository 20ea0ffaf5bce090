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
from bayplan.local.selecting import Chosen
from bayplan.local.store import Key, Stored

_MOST_LISTS = 16  # that are read in pages at the same time
_MOST_REVISION = 2**64 - 1
_MOST_DIGITS = len(str(_MOST_REVISION))
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
    if params.get("continue") and since not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    whole = since.isascii() and since.isdecimal()
    if since and (not whole or len(since) > _MOST_DIGITS or int(since) > _MOST_REVISION):
        wrong = "value out of range" if whole else "invalid syntax"
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


class Asked(Struct, frozen=True):
    """A list that somebody wants: of what kind, which of it, and how it is found."""

    store: str
    what: Chosen
    find: Callable[[], list[Stored]]

    def same(self, other: "Asked") -> bool:
        return (self.store, self.what) == (other.store, other.what)

    def key(self, stored: Stored) -> Key:
        """Its place in the list: within a namespace it is the name alone."""
        metadata = stored.value["metadata"]
        return "" if self.what.namespace else metadata.get("namespace", ""), metadata["name"]


class Pages:
    def __init__(self) -> None:
        self._lists: OrderedDict[str, tuple[Asked, list[Stored], int]] = OrderedDict()
        self._count = 0

    def page(self, asked: Asked, token: str, limit: int, revision: int) -> Page:
        """A token of another list is only a place to begin, as the API server has it."""
        number, at, items = "", 0, asked.find() if not token else []
        if token:
            number, start, after = _read(token)
            begun = self._lists.get(number)
            if begun and begun[0].same(asked):
                (_, items, revision), at = begun, start
            elif begun or number == _CURRENT:
                items = [stored for stored in asked.find() if asked.key(stored) > after]
                number = ""
            else:
                raise _expired(f"{_CURRENT}.0.{after[0]}/{after[1]}")
        if not limit or at + limit >= len(items):
            return Page(items[at:], revision)
        if not number:
            self._count += 1
            number = str(self._count)
            self._lists[number] = (asked, items, revision)
            while len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
        end = at + limit
        after = asked.key(items[end - 1])
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
    numbers = (number + start).isascii() and number.isdecimal() and start.isdecimal()
    if not numbers or len(start) > _MOST_DIGITS or not slash:
        raise bad_request(f"invalid continue token: continue key is not valid: {token}")
    return number, int(start), (namespace, name)


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
