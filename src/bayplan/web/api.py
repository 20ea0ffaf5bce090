"""The API for questions: who may ask, and in which form trouble is told.

Whoever comes shows a token or a certificate. Where neither is configured, only programs of this
machine are answered, and of those no web page that was led here under another name.

| trouble                                            | status |
|----------------------------------------------------|--------|
| the question makes no sense, or asks for too much  | 400    |
| no token, or a wrong one                           | 401    |
| asked under a name that is not this machine's      | 403    |
| an unknown path or pod, another method             | 404, 405 |
| a body that is too large, or not JSON              | 413, 415 |
| not ready, or too much at once                     | 503    |

Each is `{"error": "..."}`.
"""

import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import msgspec
from aiohttp import web
from msgspec import Struct

from bayplan.web.desk import Desk, Refused
from bayplan.web.door import Door, Limits
from bayplan.web.server import JSON, Answer, BadAddress, split
from bayplan.web.tls import Tls

log = logging.getLogger(__name__)

MAX_BODY = 4 << 20  # bytes: a thousand steps of 4 kB
LIMITS = Limits(max_body=MAX_BODY, connections=128)
_MOST_PARAMETERS = 1_000
_LOOK_S = 1.0  # between two looks at the token's file


class BadToken(ValueError):
    """A token file that cannot serve, and why."""


class Asked(Struct, frozen=True):
    """What came with a request."""

    body: bytes
    query: Mapping[str, Sequence[str]]
    rest: str = ""  # of a path that goes on


Handler = Callable[[Asked], Awaitable[Answer]]
Table = Mapping[str, Mapping[str, Handler]]  # by path, which goes on after a last /, then method


class Token:
    """What a client must know, from a file that others renew."""

    def __init__(self, path: str, now: Callable[[], float] = monotonic) -> None:
        self._path, self._now = path, now
        self._looked, self._token = now(), self._read()

    def matches(self, given: str) -> bool:
        if self._now() - self._looked >= _LOOK_S:
            self._looked = self._now()
            try:
                self._token = self._read()
            except BadToken as error:
                log.error("the token changed and cannot be used, the old one serves on: %s", error)
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)

    def _read(self) -> bytes:
        try:
            found = Path(self._path).read_bytes().strip()
        except OSError as error:
            raise BadToken(f"{self._path}: {error.strerror}") from None
        if not found or not found.isascii() or len(found.split()) != 1:
            raise BadToken(f"{self._path}: it should hold one word, the token")
        return found


class Access(Struct, frozen=True):
    """Who may ask. With both, either is enough."""

    token: Token | None = None
    tls: Tls | None = None
    certificates: bool = False  # of clients are known by their authority

    @property
    def is_guarded(self) -> bool:
        return self.token is not None or self.certificates


@asynccontextmanager
async def serving(
    address: str, table: Table, access: Access | None = None, limits: Limits = LIMITS
) -> AsyncIterator[int]:
    """Serves inside the block; gives the port. `BadAddress` when nobody can, or should, listen."""
    access = access or Access()
    host, _ = split(address)
    if not access.is_guarded and not is_here(host):
        why = "could be asked by anybody; configure a token or a CA for clients, or a local address"
        raise BadAddress(f"{address} {why}")
    door = Door(limits, access.tls)
    port = await door.open(address, _Clerk(door, table, access).handle)
    try:
        yield port
    finally:
        await door.close()


def is_here(host: str | None) -> bool:
    """Whether the name can only be this machine's own."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Clerk:
    def __init__(self, door: Door, table: Table, access: Access) -> None:
        self._table, self._access = table, access
        self._desk = Desk(door, self._answer, _refusal)
        self.handle = self._desk.handle

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self._admit(request)
        methods, rest = self._found(request.path)
        if methods is None:
            raise Refused(404, f"there are only {', '.join(self._table)}")
        handler = methods.get(request.method)
        if handler is None:
            allowed = ", ".join(methods)
            raise Refused(405, f"{request.path} takes {allowed}", {"Allow": allowed})
        if request.method == "POST" and request.content_type != JSON:
            raise Refused(415, f"the body should be JSON, with Content-Type: {JSON}")
        with await self._desk.body(request) as body:
            try:
                answer = await handler(Asked(body, _query(request.query_string), rest))
            except Refused as refused:
                return _refusal(refused)
            except Exception as error:
                log.exception("%s failed", request.path)
                words = f"{request.path} failed, see the log: {type(error).__name__}"
                return _refusal(Refused(500, words))
        headers = {"Content-Type": answer.content_type, "Cache-Control": "no-store"}
        return web.Response(body=answer.body, status=answer.status, headers=headers)

    def _found(self, path: str) -> tuple[Mapping[str, Handler] | None, str]:
        """What the path takes, and the rest of a path that goes on."""
        if path in self._table and not path.endswith("/"):
            return self._table[path], ""
        start = next(
            (each for each in self._table if each[-1] == "/" and path.startswith(each)), ""
        )
        return (self._table[start], path.removeprefix(start)) if start else (None, "")

    def _admit(self, request: web.BaseRequest) -> None:
        access = self._access
        if not access.is_guarded:
            if not is_here(_name(request.host)):
                raise Refused(403, "asked under a name that is not this machine's alone")
            return
        transport = request.transport
        if access.certificates and transport is not None and transport.get_extra_info("peercert"):
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if access.token and scheme.lower() == "bearer" and access.token.matches(given.strip()):
            return
        words = "a token is needed: Authorization: Bearer ..." if not given else "a wrong token"
        raise Refused(401, words, {"WWW-Authenticate": "Bearer"})


def _query(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise Refused(400, f"the parameters cannot be read: {error}") from None


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refusal(refused: Refused) -> web.Response:
    body = msgspec.json.encode({"error": str(refused)})
    headers = {**refused.headers, "Content-Type": JSON}
    return web.Response(body=body, status=refused.status, headers=headers)
