"""A small HTTP server on the running event loop: a table of paths, and answers as values."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from msgspec import Struct

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


class Answer(Struct, frozen=True):
    body: bytes
    status: int = 200
    content_type: str = TEXT


Routes = Mapping[str, Callable[[], Awaitable[Answer]]]  # by path; all are GETs


class BadAddress(ValueError):
    """An address that nobody can listen on."""


def text(words: str, status: int = 200) -> Answer:
    return Answer(f"{words}\n".encode(), status)


def json(value: object) -> Answer:
    return Answer(msgspec.json.encode(value), content_type=JSON)


def split(address: str) -> tuple[str | None, int]:
    """`:10270` is every address of the machine, `127.0.0.1:10271` one."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise BadAddress(f"{address!r} is not an address of the form host:port or :port")
    return host.strip("[]") or None, int(port)


@asynccontextmanager
async def serving(address: str, routes: Routes) -> AsyncIterator[int]:
    """Serves inside the block; gives the port, for an address that leaves the choice (`:0`)."""
    host, port = split(address)
    app = web.Application()
    for path, answer in routes.items():
        app.router.add_get(path, _handler(answer))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise BadAddress(f"cannot listen on {address}: {error.strerror}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _handler(
    answer: Callable[[], Awaitable[Answer]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        given = await answer()
        return web.Response(
            body=given.body, status=given.status, headers={"Content-Type": given.content_type}
        )

    return handle
