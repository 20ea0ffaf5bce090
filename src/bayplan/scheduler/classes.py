"""PriorityClasses and RuntimeClasses, for manifests that are asked about.

No decision needs them: a pod of the API has what they say. So they are not watched, but read when
somebody asks and what is known is a minute old.
"""

import asyncio
import logging
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from bayplan.core.model.pods import Pod
from bayplan.kube import wire
from bayplan.kube.client import PRIORITY_CLASSES, RUNTIME_CLASSES, Client, Resource
from bayplan.kube.defaults import SYSTEM_PRIORITIES, Classes, default_pod
from bayplan.kube.manifests import pod_of
from bayplan.kube.read import Reader, Unreadable, decode
from bayplan.kube.transport import ApiError, TransportError

log = logging.getLogger("bayplan")

FRESH_S = 60.0
_READ_S = 5.0
C = TypeVar("C", wire.PriorityClass, wire.RuntimeClass)


class _List(Struct):
    items: list[Raw] = []


class KnownClasses:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self._priority: dict[str, wire.PriorityClass] = {}
        self._runtime: dict[str, wire.RuntimeClass] = {}
        self._troubles: dict[str, str] = {}  # by kind: why they could not be read

    async def refresh(self) -> None:
        """Reads them, unless that was done a moment ago."""
        async with self._reading:
            now = self._client.clock.time()
            if now - self._read_at < FRESH_S:
                return
            self._priority = await self._read(PRIORITY_CLASSES, wire.PriorityClass, self._priority)
            self._runtime = await self._read(RUNTIME_CLASSES, wire.RuntimeClass, self._runtime)
            self._read_at = now

    async def _read(self, what: Resource, kind: type[C], before: dict[str, C]) -> dict[str, C]:
        """All of a kind; those from before where they cannot be read."""
        try:
            body = await self._client.request("GET", what.path(), timeout_s=_READ_S)
            found = _decoded(msgspec.json.decode(body, type=_List).items, kind, what.plural)
        except (ApiError, TransportError, msgspec.MsgspecError) as error:
            if self._troubles.get(what.plural) != str(error):
                log.warning("%s cannot be read for questions: %s", what.plural, error)
            self._troubles[what.plural] = str(error)
            return before
        self._troubles.pop(what.plural, None)
        return found

    def pod(self, manifest: dict[str, Any], reader: Reader) -> Pod:
        """The manifest's pod, as the API server would have stored it."""
        pod = default_pod(pod_of(manifest), Classes(self._priority, self._runtime))
        spec = pod["spec"]
        priority, runtime = spec.get("priorityClassName"), spec.get("runtimeClassName")
        known = {**SYSTEM_PRIORITIES, **self._priority}
        if priority and priority not in known and spec.get("priority") is None:
            raise self._unknown(pod, "priorityClassName", PRIORITY_CLASSES)
        if runtime and runtime not in self._runtime:
            raise self._unknown(pod, "runtimeClassName", RUNTIME_CLASSES)
        return reader.pod(pod, newcomer=True)

    def _unknown(self, pod: dict[str, Any], field: str, what: Resource) -> Unreadable:
        name, trouble = pod["spec"][field], self._troubles.get(what.plural)
        why = f"{what.plural} cannot be read: {trouble}" if trouble else f"there is no {name!r}"
        return Unreadable(f"pod {_called(pod)}", f"spec.{field}", why)


def _decoded(items: list[Raw], kind: type[C], plural: str) -> dict[str, C]:
    found: dict[str, C] = {}
    for raw in items:
        try:
            one = decode(raw, kind, plural)
        except Unreadable as error:
            log.warning("left out for questions: %s", error)
            continue
        if one.metadata is not None and one.metadata.name:
            found[one.metadata.name] = one
    return found


def _called(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata'].get('name')}"
