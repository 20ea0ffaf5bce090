"""One request to the API server and its answer: paths, Status errors, and when to try again.

Nothing is tried twice unless the caller says so, because only the caller knows whether a second
bind or a second event would do harm.
"""

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from bayplan.kube.clock import Backoff, Clock
from bayplan.kube.transport import (
    JSON,
    REQUEST_S,
    ApiError,
    BeforeSend,
    Params,
    Response,
    Stream,
    Transport,
    TransportError,
    Unauthorized,
)

PASSING = frozenset({429, 500, 502, 503, 504})  # answers that the same question may not get again


class Resource(Struct, frozen=True, cache_hash=True):
    """A kind of object, as paths name it. The core group is ""."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """One object of it, or all in a namespace, or all."""
        path = _path_of_all(self, namespace)
        if name:
            path = f"{path}/{_quoted(name)}"
        return f"{path}/{_quoted(sub)}" if sub else path


@lru_cache(maxsize=1024)
def _path_of_all(resource: Resource, namespace: str) -> str:
    api = f"/apis/{resource.group}" if resource.group else "/api"
    within = f"/namespaces/{_quoted(namespace)}" if namespace else ""
    return f"{api}/{resource.version}{within}/{resource.plural}"


_is_plain = re.compile(r"[-a-z0-9.]+").fullmatch  # nearly every name is


def _quoted(part: str) -> str:
    return part if _is_plain(part) else quote(part, safe="")


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
NAMESPACES = Resource("", "v1", "namespaces")
EVENTS = Resource("events.k8s.io", "v1", "events")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
VOLUMES = Resource("", "v1", "persistentvolumes")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
TOPOLOGIES = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")
OLD_TOPOLOGIES = Resource("topology.node.k8s.io", "v1alpha1", "noderesourcetopologies")
POD_GROUPS = {  # by group of the API
    "scheduling.x-k8s.io": Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups"),
    "scheduling.sigs.k8s.io": Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups"),
    "scheduling.k8s.io": Resource("scheduling.k8s.io", "v1alpha2", "podgroups"),
}
LEASES = Resource("coordination.k8s.io", "v1", "leases")


class Retry(Struct, frozen=True):
    """How often to try in all, and the pauses. A POST is tried once unless `post` is set."""

    tries: int = 1
    first_s: float = 0.2
    most_s: float = 10.0
    post: bool = False


ONCE = Retry()


class Client:
    def __init__(self, transport: Transport, clock: Clock, rng: random.Random) -> None:
        self.transport, self.clock, self.rng = transport, clock, rng

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
        retry: Retry = ONCE,
    ) -> bytes:
        """The body of a good answer; `ApiError` for another, `TransportError` for none.

        `timeout_s` is per try. 429, 5xx and broken connections are tried again, after the time
        that the server asks for or else a growing one, as often as `retry` says.
        """
        backoff: Backoff | None = None
        left = 1 if method == "POST" and not retry.post else retry.tries
        while True:
            left -= 1
            asked_s = None
            try:
                response = await self.transport.request(
                    method,
                    path,
                    params=params,
                    body=body,
                    content_type=content_type,
                    timeout_s=timeout_s,
                    before_send=before_send,
                )
                if response.status < 300:
                    return response.body
                error = api_error(response)
                if error.status not in PASSING or left <= 0:
                    raise error
                asked_s = error.retry_after
            except TransportError:
                if left <= 0:
                    raise
            if backoff is None:
                backoff = Backoff(self.clock, self.rng, retry.first_s, retry.most_s)
            await backoff.pause(asked_s)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Params, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        """A stream whose beginning was good; `ApiError` for another, `TransportError` for none."""
        async with self.transport.stream(path, params=params, timeout_s=timeout_s) as stream:
            if stream.status != 200:
                body = bytearray()
                with suppress(TimeoutError, TransportError):  # its status says the most
                    async with self.clock.timeout(timeout_s):
                        async for chunk in stream.chunks:
                            body += chunk
                raise api_error(Response(stream.status, stream.headers, bytes(body)))
            yield stream


class _Status(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def api_error(response: Response) -> ApiError:
    """What a bad answer says; a proxy's may not be a Status."""
    asked = response.headers.get("retry-after", "")
    try:
        status = _decode_status(response.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        words = response.body[:200].decode("utf-8", "replace").split()
        status = _Status(message=" ".join(words))
    status.code = response.status
    return _error(status, float(asked) if asked.isascii() and asked.isdigit() else None)


def status_error(source: Raw) -> ApiError:
    """What the object of a watch's ERROR event says."""
    try:
        return _error(_decode_status(source), None)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return ApiError(500, "", f"the watch ended with an error that cannot be read: {error}")


def _error(status: _Status, asked_s: float | None) -> ApiError:
    if status.code == 401:
        return Unauthorized(status.message)
    details = status.details or {}
    if asked_s is None:
        seconds = details.get("retryAfterSeconds")
        asked_s = float(seconds) if isinstance(seconds, int) and seconds > 0 else None
    return ApiError(status.code or 500, status.reason, status.message, details, asked_s)
