"""A stand-in for the decisions, and a client that can be as rude as it likes."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trustme

from bayplan.extender import wire
from bayplan.extender.server import NotLeading
from bayplan.web.tls import TlsFiles

HOST = "127.0.0.1"
POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}
BIND = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}
FILTER: dict[str, Any] = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}

Asked = tuple[int, dict[str, str], bytes]


class Stub:
    """Every node fits, unless told otherwise."""

    def __init__(self) -> None:
        self.leads = True
        self.mistake: Exception | None = None
        self.seen: list[object] = []
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.go.set()
        self.padding = ""

    async def filter(self, args: wire.FilterArgs) -> wire.FilterResult:
        await self._at_work(args)
        return args.passed(args.names, {"full": self.padding} if self.padding else {})

    async def prioritize(self, args: wire.ScoreArgs) -> list[wire.HostPriority]:
        await self._at_work(args)
        return [wire.HostPriority(name, 7) for name in args.names]

    async def preempt(self, args: wire.PreemptArgs) -> wire.PreemptResult:
        await self._at_work(args)
        return wire.PreemptResult(args.victims)

    async def bind(self, args: wire.BindArgs) -> wire.BindResult:
        await self._at_work(args)
        return wire.BindResult()

    async def _at_work(self, args: object) -> None:
        self.begun.release()
        await self.go.wait()
        if not self.leads:
            raise NotLeading
        if self.mistake:
            raise self.mistake
        self.seen.append(args)


class Client:
    """One connection. It speaks HTTP by hand, so that it can stop in the middle."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self) -> Asked:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in fields}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ask(self, path: str, body: object, method: str = "POST", more: str = "") -> Asked:
        await self.send(request(path, body, method, more))
        return await self.answer()

    async def ended(self) -> bytes:
        """What still comes until the server closes, by whatever means."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""


def request(path: str, body: object, method: str = "POST", more: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


@asynccontextmanager
async def connected(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        HOST, port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def ask(port: int, path: str, body: object, more: str = "") -> tuple[int, Any]:
    """One request on a connection of its own; JSON is read."""
    async with connected(port) as client:
        status, headers, content = await client.ask(path, body, more=more)
    is_json = headers["content-type"] == "application/json"
    return status, json.loads(content) if is_json else content.decode()


def write_files(folder: Path, ca: trustme.CA, client_ca: trustme.CA | None = None) -> TlsFiles:
    """A new certificate, over the one that was there."""
    leaf = ca.issue_cert("localhost")
    certificate, key, authority = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
    leaf.cert_chain_pems[0].write_to_path(str(certificate))
    leaf.private_key_pem.write_to_path(str(key))
    if client_ca is not None:
        client_ca.cert_pem.write_to_path(str(authority))
    return TlsFiles(str(certificate), str(key), str(authority) if client_ca else "")


def trusting(ca: trustme.CA, shown: trustme.CA | None = None) -> ssl.SSLContext:
    """A client's side, which shows a certificate of this authority if there is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    if shown is not None:
        shown.issue_cert("client@test").configure_cert(context)
    return context
