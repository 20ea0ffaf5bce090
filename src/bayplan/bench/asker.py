"""Asks a server the same thing at a steady pace, until it is told to stop.

    python -m bayplan.bench.asker URL PER_SECOND OUT [BODY]

GET, or POST where there is a BODY. On SIGTERM it writes OUT: how many answers there were, how many
of them were 200, and how long those took.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
from msgspec import Struct

CONNECTIONS = 16


class Asked(Struct, frozen=True):
    answers: int
    ok: int
    ms: list[float]  # of those that were ok


async def ask(url: str, per_second: float, body: str | None) -> Asked:
    answers, times = 0, []
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def once(session: aiohttp.ClientSession) -> None:
        nonlocal answers
        began = time.monotonic()
        method, data = ("GET", None) if body is None else ("POST", body)
        headers = {"Content-Type": "application/json"}
        try:
            async with session.request(method, url, data=data, headers=headers) as answer:
                await answer.read()
        except aiohttp.ClientError:
            return  # it is not there yet
        answers += 1
        if answer.status == 200:
            times.append(1e3 * (time.monotonic() - began))

    began, turn = time.monotonic(), 0
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        while not stop.is_set():
            turn += 1
            await asyncio.sleep(max(0.0, began + turn / per_second - time.monotonic()))
            group.create_task(once(session))
    return Asked(answers, len(times), times)


if __name__ == "__main__":
    url, per_second, out, *body = sys.argv[1:]
    found = asyncio.run(ask(url, float(per_second), body[0] if body else None))
    Path(out).write_bytes(msgspec.json.encode(found))
