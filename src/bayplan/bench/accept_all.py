"""An extender without a decision: every node passes, all are equal, and a bind is sent at once.

It has the same verbs as ours on the same HTTP stack, aiohttp and msgspec on uvloop in one process,
and speaks `nodeCacheCapable` only. It watches nothing, checks nothing and retries nothing.

    python -m bayplan.bench.accept_all KUBECONFIG PORT
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Raw, Struct
from yarl import URL

from bayplan.bench.access import access
from bayplan.bench.bare_binder import CONNECTIONS, run

MOST_BYTES = 32 << 20


class Asked(Struct, rename="pascal"):
    node_names: list[str]


class Priority(Struct, rename="pascal"):
    host: str
    score: int = 0


class Preempted(Struct):
    NodeNameToMetaVictims: Raw = Raw(b"{}")


class Bind(Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


_decode_asked = msgspec.json.Decoder(Asked).decode
_decode_bind = msgspec.json.Decoder(Bind).decode
_decode_preempt = msgspec.json.Decoder(Preempted).decode
_encode = msgspec.json.Encoder().encode


def _answer(value: object) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json")


async def filter_nodes(request: web.Request) -> web.Response:
    asked = _decode_asked(await request.read())
    return _answer({"NodeNames": asked.node_names, "FailedNodes": {}, "Error": ""})


async def prioritize(request: web.Request) -> web.Response:
    asked = _decode_asked(await request.read())
    return _answer([Priority(name) for name in asked.node_names])


async def preempt(request: web.Request) -> web.Response:
    return _answer(_decode_preempt(await request.read()))


class Binder:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session

    async def bind(self, request: web.Request) -> web.Response:
        asked = _decode_bind(await request.read())
        path = f"/api/v1/namespaces/{asked.PodNamespace}/pods/{asked.PodName}/binding"
        body = _encode(
            {
                "metadata": {
                    "name": asked.PodName,
                    "namespace": asked.PodNamespace,
                    "uid": asked.PodUID,
                },
                "target": {"name": asked.Node, "kind": "Node", "apiVersion": "v1"},
                "kind": "Binding",
                "apiVersion": "v1",
            }
        )
        async with self._session.post(URL(self._url + path, encoded=True), data=body) as answer:
            said = await answer.read()
        return _answer({"Error": "" if answer.status == 201 else said.decode()[:200]})


def session(kubeconfig: str) -> tuple[str, aiohttp.ClientSession]:
    """Of a control plane, or of the stand-in, which has neither TLS nor tokens."""
    config = json.loads(Path(kubeconfig).read_text())
    url: str = config["clusters"][0]["cluster"]["server"]
    tls: ssl.SSLContext | bool = True
    headers = {"Content-Type": "application/json"}
    if url.startswith("https:"):
        where = access(kubeconfig)
        tls, headers["Authorization"] = where.tls(), where.authorization
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls)
    return url, aiohttp.ClientSession(connector=connector, headers=headers)


async def main(kubeconfig: str, port: int) -> None:
    url, client = session(kubeconfig)
    async with client:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/filter", filter_nodes)
        app.router.add_post("/prioritize", prioritize)
        app.router.add_post("/preempt", preempt)
        app.router.add_post("/bind", Binder(url, client).bind)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(sys.argv[1], int(sys.argv[2])))
