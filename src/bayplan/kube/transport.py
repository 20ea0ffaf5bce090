"""What travels between us and an API server, and what can go wrong on the way.

A transport carries one request or one stream of bytes. It knows credentials and connections; it
knows neither objects nor versions. It tries nothing twice, but for a request whose credentials had
gone stale, and one that is no POST or PATCH and whose connection broke under it (Go's client does
the same). There is one over HTTP in `http`; another calls an API server in the same process.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Struct

Params = Mapping[str, str]
BeforeSend = Callable[[], None]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

REQUEST_S = 30.0


class Response(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # found by names in lower case, at least
    body: bytes


class Stream(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # found by names in lower case, at least
    chunks: AsyncIterator[bytes]  # as they come: neither lines nor objects


class Transport(Protocol):
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = REQUEST_S,
        before_send: BeforeSend | None = None,
    ) -> Response:
        """One request and its whole answer, whatever its status, within `timeout_s` seconds.

        `before_send` is called when a connection is in hand, right before the bytes are written.
        When it raises `Fenced`, nothing is sent. It may be called more than once.
        """

    def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AbstractAsyncContextManager[Stream]:
        """A GET whose answer has no end; `timeout_s` is for its beginning."""

    async def close(self) -> None: ...


class TransportError(Exception):
    """The server cannot be reached, or the connection broke, or it took too long."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent  # whether the server may have carried it out


class Fenced(Exception):
    """Too late: by the time the request could have been sent, we had no right to send it."""


class ApiError(Exception):
    """The server said no: a Status."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{message or reason or 'no reason given'} ({status})")
        self.status, self.reason, self.message = status, reason, message
        self.details: Mapping[str, Any] = details or {}
        self.retry_after = retry_after  # seconds


class Unauthorized(ApiError):
    """Our credentials are refused, also after they were read afresh."""

    def __init__(self, message: str) -> None:
        super().__init__(401, "Unauthorized", message)
