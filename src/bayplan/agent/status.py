"""Health and counts over HTTP: /livez, /readyz and /metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from bayplan.agent.counts import Counts

_HELP = {
    "registrations": "Registrations with the kubelet.",
    "allocations": "Containers that the kubelet fetched devices for.",
    "refusals": "Allocations that were refused: unknown or unhealthy devices.",
    "swapped": "Pods that held other devices than they were given; their assignment was put right.",
    "written": "Assignments that were written for pods that had none.",
    "marked": "Pods that were told, in Neuron's annotations alone, which devices they have got.",
    "drift": "Devices in use that nobody was given, or whose pod is gone.",
    "refused_assignments": "Assignments that were not used: another node's, newer, unreadable.",
    "published": "Writes of the node's annotation or status.",
    "profiled": "Writes of what cards do, to the node or to a pod.",
    "troubles": "What failed, and is tried again.",
}


class BadAddress(ValueError):
    """An address that nobody can listen on."""


@asynccontextmanager
async def serving(address: str, counts: Counts, is_ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serves inside the block; gives the port, for an address that leaves the choice (`:0`)."""

    async def livez(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        ready = is_ready()
        return web.Response(text="ok\n" if ready else "not yet\n", status=200 if ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(text=exposition(counts), headers=headers)

    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise BadAddress(f"{address!r} is not an address of the form host:port or :port")
    app = web.Application()
    for path, handle in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics)):
        app.router.add_get(path, handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except OSError as error:
            raise BadAddress(f"cannot listen on {address}: {error.strerror}") from None
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def exposition(counts: Counts) -> str:
    """Plain counters without labels need nothing of prometheus-client, which costs 3 MiB."""
    lines: list[str] = []
    for name, help in _HELP.items():
        full = f"bayplan_agent_{name}_total"
        lines += [f"# HELP {full} {help}", f"# TYPE {full} counter"]
        lines.append(f"{full} {getattr(counts, name)}")
    return "\n".join(lines) + "\n"
