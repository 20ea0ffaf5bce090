"""List and watch against a server that misbehaves in every way that is known."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from bayplan.kube.reflector import Lines, Reflector, Watched
from bayplan.kube.transport import ApiError
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import connected
from tests.kube_net.stand_in import (
    StandIn,
    answer,
    bookmark,
    drop,
    error_event,
    event,
    line,
    page,
    refuse,
    thing,
    watch,
)

PATH = "/apis/test/v1/things"


class Name(Struct):
    name: str


class Thing(Struct):
    metadata: Name
    size: int


class Things:
    """A sink that keeps what it is told, and can be waited for."""

    def __init__(self) -> None:
        self.here: dict[str, int] = {}
        self.said: list[str] = []
        self.bads: list[tuple[bytes, str]] = []
        self._changed = asyncio.Event()

    def replace(self, items: list[Thing], resource_version: str) -> None:
        self.here = {item.metadata.name: item.size for item in items}
        self._say(f"replace {resource_version}")

    def put(self, item: Thing) -> None:
        self.here[item.metadata.name] = item.size
        self._say(f"put {item.metadata.name}")

    def drop(self, item: Thing) -> None:
        self.here.pop(item.metadata.name, None)
        self._say(f"drop {item.metadata.name}")

    def synced(self) -> None:
        self._say("synced")

    def bad(self, line: bytes, error: Exception) -> None:
        self.bads.append((line, str(error)))
        self._say("bad")

    def _say(self, what: str) -> None:
        self.said.append(what)
        self._changed.set()

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            self._changed.clear()
            await self._changed.wait()

    async def until_said(self, what: str, times: int = 1) -> None:
        await self.until(lambda: self.said.count(what) >= times)


class Rig:
    def __init__(self, server: StandIn, reflector: Reflector[Thing], sink: Things) -> None:
        self.server, self.reflector, self.sink = server, reflector, sink
        self.troubles: list[str] = []
        self.wholes: list[int] = []  # how many requests there were before each whole

    @property
    def list_count(self) -> int:
        return sum(seen.is_list for seen in self.server.requests)


@asynccontextmanager
async def following(
    server: StandIn,
    clock: ManualClock,
    folder: Path,
    lenient: Callable[[Raw, Exception], Thing] | None = None,
) -> AsyncIterator[Rig]:
    async with connected(server.url, clock, folder) as client:
        decode = msgspec.json.Decoder(Thing).decode
        what = Watched(PATH, decode, lenient, field_selector="spec.x!=y")
        sink = Things()
        troubles: list[str] = []
        wholes: list[int] = []
        reflector = Reflector(
            client,
            what,
            sink,
            lambda error: troubles.append(str(error)),
            lambda: wholes.append(len(server.requests)),
        )
        rig = Rig(server, reflector, sink)
        rig.troubles, rig.wholes = troubles, wholes
        task = asyncio.create_task(reflector.run(), name="reflector")
        try:
            yield rig
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def initial(*names: str, version: int = 10) -> tuple[dict[str, Any], ...]:
    """The beginning of a watch that sends the whole first."""
    return (
        *(event("ADDED", name, at) for at, name in enumerate(names, 1)),
        bookmark(version, ends_list=True),
    )


async def test_the_whole_comes_as_a_stream_and_changes_follow_on_it(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(
            *initial("a", "b"),
            event("MODIFIED", "a", 11, size=5),
            event("DELETED", "b", 12),
            event("ADDED", "c", 13),
            end="silent",
        )
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put c")

        assert rig.sink.here == {"a": 5, "c": 1}
        assert rig.sink.said == ["replace 10", "synced", "put a", "drop b", "put c"]
        assert rig.reflector.version == "13"
        asked = server.requests[0].query
        assert 300 <= int(asked.pop("timeoutSeconds")) <= 600
        assert asked == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "resourceVersion": "",
            "fieldSelector": "spec.x!=y",
        }
        counted = rig.reflector
        assert (counted.lists, counted.watches, counted.restarts) == (1, 1, 0)
        assert (counted.events, counted.bookmarks) == (5, 1)
        assert rig.wholes == [0]  # told before it is asked for


async def test_what_changes_while_the_whole_is_sent_is_part_of_it(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(
            event("ADDED", "a", 1),
            event("ADDED", "b", 2),
            event("MODIFIED", "a", 11, size=7),
            event("DELETED", "b", 12),
            bookmark(12, ends_list=True),
            end="silent",
        )
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert rig.sink.said == ["replace 12", "synced"]
        assert rig.sink.here == {"a": 7}


async def test_a_closed_watch_goes_on_from_the_last_version_without_a_list(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a"), event("ADDED", "b", 11)),
        watch(event("ADDED", "c", 12)),
        watch(event("ADDED", "d", 13), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put d")

        assert [seen.query["resourceVersion"] for seen in server.requests] == ["", "11", "12"]
        assert rig.list_count == 1
        assert rig.reflector.restarts == 2
        assert rig.troubles == []


async def test_a_watch_that_lasted_is_followed_by_the_next_at_once(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    close = asyncio.Event()
    server.then(watch(*initial("a"), until=close), watch(event("ADDED", "b", 11), end="silent"))
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")
        clock.advance(100)
        close.set()
        await rig.sink.until_said("put b")

        assert clock.slept == []


async def test_a_connection_that_drops_in_the_middle_of_a_line_loses_nothing(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    cut = asyncio.Event()
    half = line(event("ADDED", "c", 12))[:30]
    server.then(
        watch(*initial("a"), event("ADDED", "b", 11), half, end="drop", until=cut),
        watch(event("ADDED", "c", 12), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put b")
        cut.set()
        await rig.sink.until_said("put c")

        assert rig.sink.here == {"a": 1, "b": 1, "c": 1}
        assert rig.sink.bads == []
        assert server.requests[1].query["resourceVersion"] == "11"
        assert rig.list_count == 1
        assert len(rig.troubles) == 1


async def test_a_bookmark_moves_the_version_over_a_gap_in_which_nothing_of_ours_happened(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a"), event("ADDED", "b", 11), bookmark(90_000)),
        watch(event("ADDED", "c", 90_001), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put c")

        assert server.requests[1].query["resourceVersion"] == "90000"
        assert rig.list_count == 1
        assert rig.reflector.bookmarks == 2


async def test_429_on_a_watch_waits_as_long_as_asked_and_lists_nothing(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a")),
        refuse(429, "TooManyRequests", headers={"Retry-After": "7"}),
        refuse(429, "TooManyRequests", retryAfterSeconds=9),
        watch(event("ADDED", "b", 11), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put b")

        assert [seen.query["resourceVersion"] for seen in server.requests] == ["", *["10"] * 3]
        assert rig.list_count == 1
        assert 7 <= clock.slept[1] <= 8
        assert 9 <= clock.slept[2] <= 10


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_5xx_on_a_watch_backs_off_and_lists_nothing(
    server: StandIn, clock: ManualClock, tmp_path: Path, code: int
) -> None:
    server.then(
        watch(*initial("a")), *[refuse(code)] * 7, watch(event("ADDED", "b", 11), end="silent")
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put b")

        assert rig.list_count == 1
        assert len(rig.troubles) == 7
        grown = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]  # each with up to as much again
        assert all(least <= s <= 2 * least for least, s in zip(grown, clock.slept, strict=True))


async def test_back_off_starts_over_after_a_healthy_while(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    cut = asyncio.Event()
    server.then(
        *[refuse(500)] * 6,
        watch(*initial("a"), end="drop", until=cut),
        watch(event("ADDED", "b", 11), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")
        assert clock.slept[-1] >= 25.6
        clock.advance(121)
        cut.set()
        await rig.sink.until_said("put b")

        assert clock.slept[-1] <= 1.6


async def test_a_silent_connection_is_given_up_and_the_watch_goes_on(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(watch(*initial("a"), end="silent"), watch(event("ADDED", "b", 11), end="silent"))
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")
        clock.advance(149)
        await asyncio.sleep(0.01)
        assert len(server.requests) == 1
        clock.advance(2)
        await rig.sink.until_said("put b")

        assert server.requests[1].query["resourceVersion"] == "10"
        assert rig.list_count == 1
        assert rig.troubles == [f"GET {PATH}: the watch was silent for 150 s"]


@pytest.mark.parametrize("how", ["status", "event"])
async def test_410_reads_the_whole_again(
    server: StandIn, clock: ManualClock, tmp_path: Path, how: str
) -> None:
    gone = refuse(410, "Expired") if how == "status" else watch(error_event(410, "Expired"))
    server.then(
        watch(*initial("a", "b")), gone, watch(*initial("b", "c", version=50), end="silent")
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced", times=2)

        assert rig.sink.here == {"b": 1, "c": 1}
        assert rig.list_count == rig.reflector.lists == 2
        assert rig.reflector.version == "50"


async def test_a_version_that_got_too_old_during_a_long_rest_costs_no_other(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a")),
        refuse(410, "Expired"),
        watch(*initial("b", version=20)),
        *[refuse(503)] * 3,
        refuse(410, "Expired"),
        watch(*initial("c", version=30), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced", times=3)

        rests = [slept for slept in clock.slept if slept]
        assert rests[-1] > 5
        assert len(rests) == 5  # two for watches that ended soon, three for refusals


async def test_a_server_that_says_410_to_everything_is_given_time(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(*[refuse(410, "Expired")] * 5, watch(*initial("a"), end="silent"))
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert len([slept for slept in clock.slept if slept]) == 4


@pytest.mark.parametrize("code", [401, 429, 500, 504])
async def test_an_error_event_of_another_kind_ends_the_watch_and_nothing_else(
    server: StandIn, clock: ManualClock, tmp_path: Path, code: int
) -> None:
    server.then(
        watch(*initial("a"), event("ADDED", "b", 11), error_event(code)),
        watch(event("ADDED", "c", 12), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put c")

        assert server.requests[1].query["resourceVersion"] == "11"
        assert rig.list_count == 1


async def test_an_error_event_that_is_no_status_is_survived(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a"), {"type": "ERROR", "object": [1]}),
        watch(event("ADDED", "c", 12), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put c")

        assert rig.list_count == 1


# Servers without WatchList


@pytest.mark.parametrize("code", [400, 422])
async def test_a_server_that_cannot_stream_the_whole_is_asked_for_pages_and_that_is_remembered(
    server: StandIn, clock: ManualClock, tmp_path: Path, code: int
) -> None:
    server.then(
        refuse(code, "Invalid"),
        answer(page(thing("a", 1), version=20, next="p2")),
        answer(page(thing("b", 2), version=20)),
        watch(error_event(410)),
        answer(page(thing("b", 2), version=30)),
        watch(event("ADDED", "c", 31), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put c")

        queries = [seen.query for seen in server.requests]
        assert sum("sendInitialEvents" in query for query in queries) == 1
        selector = {"fieldSelector": "spec.x!=y"}
        assert queries[1] == {"limit": "500", **selector}
        assert queries[2] == {"limit": "500", "continue": "p2", **selector}
        assert [query.get("resourceVersion") for query in queries[3:]] == ["20", None, "30"]
        assert rig.sink.said == ["replace 20", "synced", "replace 30", "synced", "put c"]
        assert rig.sink.here == {"b": 1, "c": 1}
        assert rig.reflector.restarts == 0
        assert rig.wholes == [0, 1, 4]  # at the first page, and not when a watch goes on


@pytest.mark.parametrize("end", ["close", "silent"])
async def test_a_server_that_never_ends_the_whole_is_asked_for_pages(
    server: StandIn, clock: ManualClock, tmp_path: Path, end: str
) -> None:
    """One that does not know `sendInitialEvents` just starts a watch."""
    server.then(
        watch(event("ADDED", "bad", 1, size="x"), end=end),
        answer(page(thing("a", 1), version=20)),
        watch(end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("bad")
        clock.advance(151)
        await rig.sink.until_said("synced")

        assert rig.sink.said == ["bad", "replace 20", "synced"]


async def test_a_stream_of_the_whole_that_breaks_is_started_over(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    cut = asyncio.Event()
    server.then(
        watch(event("ADDED", "a", 1), b"?\n", end="drop", until=cut),
        watch(*initial("b"), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("bad")
        cut.set()
        await rig.sink.until_said("synced")

        assert rig.sink.here == {"b": 1}
        assert server.requests[1].query["sendInitialEvents"] == "true"


async def test_trouble_between_pages_costs_one_page(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        refuse(422),
        answer(page(thing("a", 1), version=20, next="p2")),
        refuse(429, headers={"Retry-After": "3"}),
        drop(),
        refuse(503),
        answer(page(thing("b", 2), version=20)),
        watch(end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert rig.sink.here == {"a": 1, "b": 1}
        pages = [seen.query.get("continue") for seen in server.requests[1:] if seen.is_list]
        # aiohttp itself asks once more when a kept connection breaks under a GET
        assert pages[0] is None
        assert set(pages[1:]) == {"p2"}
        assert rig.reflector.lists == 1
        assert 3 <= clock.slept[0] <= 4


async def test_pages_that_expire_are_followed_by_all_in_one(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        refuse(422),
        answer(page(thing("a", 1), version=20, next="p2")),
        refuse(410, "Expired"),
        answer(page(thing("b", 2), thing("c", 3), version=25)),
        watch(end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert rig.sink.here == {"b": 1, "c": 1}
        assert "limit" not in server.requests[3].query
        assert "continue" not in server.requests[3].query
        assert rig.sink.said == ["replace 25", "synced"]
        assert rig.wholes == [0, 1, 3]


async def test_a_page_that_is_no_list_is_trouble_and_no_more(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        refuse(422), answer([1]), answer(page(thing("a", 1), version=20)), watch(end="silent")
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert rig.sink.here == {"a": 1}
        assert "the list cannot be read" in rig.troubles[0]


async def test_the_whole_can_be_read_once(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        refuse(429, headers={"Retry-After": "3"}),
        answer(page(thing("a", 1), version=20, next="p2")),
        refuse(500),
        answer(page(thing("b", 2), version=20)),
        refuse(403, message="not yours"),
    )
    async with connected(server.url, clock, tmp_path) as client:
        sink = Things()
        what = Watched(PATH, msgspec.json.Decoder(Thing).decode)
        await Reflector(client, what, sink).read()
        assert sink.here == {"a": 1, "b": 1}
        assert sink.said == ["replace 20", "synced"]
        assert "resourceVersion" not in server.requests[0].query  # consistent, not from a cache

        with pytest.raises(ApiError, match="not yours"):
            await Reflector(client, what, sink).read()


# What cannot be read


async def test_what_cannot_be_decoded_is_reported_and_the_stream_goes_on(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(
            event("ADDED", "bad", 1, size="huge"),
            *initial("a"),
            b"<html>\n",
            b"\n",
            event("MODIFIED", "a", 11, size=[1]),
            {"type": "RENAMED", "object": thing("a", 12)},
            b'{"type":"ADDED","object":{"metadata":{"name":"\xff"},"size":1}}\n',
            b'{"type":"ADDED","object":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
            event("ADDED", "b", 14),
            end="silent",
        )
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put b")

        assert rig.sink.here == {"a": 1, "b": 1}
        assert len(rig.sink.bads) == 6
        assert rig.sink.bads[0][0] == line(event("ADDED", "bad", 1, size="huge")).strip()
        assert "$.size" in rig.sink.bads[0][1]
        assert rig.sink.bads[1][0] == b"<html>"
        assert rig.reflector.version == "14"


async def test_a_bad_object_is_reported_once_also_when_the_watch_goes_on_after_it(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        watch(*initial("a"), event("ADDED", "bad", 11, size="huge"), b"{}\n"),
        watch(event("ADDED", "b", 12), end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put b")

        assert server.requests[1].query["resourceVersion"] == "11"


async def test_a_bad_object_in_a_list_is_left_out(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(
        refuse(422),
        answer(page(thing("a", 1), thing("bad", 2, size=None), version=20)),
        watch(end="silent"),
    )
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("synced")

        assert rig.sink.here == {"a": 1}
        assert len(rig.sink.bads) == 1


async def test_a_field_of_the_wrong_type_gets_a_second_lenient_look(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    def lenient(raw: Raw, error: Exception) -> Thing:
        assert "$.size" in str(error)
        seen = msgspec.json.decode(raw)
        return Thing(Name(seen["metadata"]["name"]), -1)

    server.then(watch(*initial("a"), event("ADDED", "b", 11, size="huge"), end="silent"))
    async with following(server, clock, tmp_path, lenient) as rig:
        await rig.sink.until_said("put b")

        assert rig.sink.here == {"a": 1, "b": -1}
        assert rig.sink.bads == []


async def test_a_line_of_3_mb_comes_through(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    big = event("ADDED", "big", 11)
    big["object"]["padding"] = "x" * 3_000_000
    server.then(watch(*initial("a"), big, end="silent"))
    async with following(server, clock, tmp_path) as rig:
        await rig.sink.until_said("put big")

        assert rig.reflector.version == "11"


def test_lines_take_time_in_proportion_to_their_length() -> None:
    """A line in 300,000 chunks of 10 bytes: joined anew with each, it would be 450 GB to copy."""
    lines = Lines()
    assert lines.feed(b"one\ntw") == [b"one"]
    for _ in range(300_000):
        assert lines.feed(b"o" * 10) == []
    assert [len(line) for line in lines.feed(b"\n\nthree\n")] == [3_000_002, 0, 5]
    assert lines.feed(b"") == []
