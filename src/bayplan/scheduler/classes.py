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
        self._trouble = ""  # why they could not be read
        self._classes = Classes()

    async def refresh(self) -> None:
        """Reads them, unless that was done a moment ago."""
        async with self._reading:
            now = self._client.clock.time()
            if now - self._read_at < FRESH_S:
                return
            try:
                priority = await self._read(PRIORITY_CLASSES, wire.PriorityClass)
                runtime = await self._read(RUNTIME_CLASSES, wire.RuntimeClass)
                self._classes, self._trouble = Classes(priority, runtime), ""
            except (ApiError, TransportError, msgspec.MsgspecError) as error:
                if str(error) != self._trouble:
                    log.warning("classes of pods cannot be read for questions: %s", error)
                self._trouble = str(error)
            self._read_at = now

    async def _read(self, what: Resource, kind: type[C]) -> dict[str, C]:
        body = await self._client.request("GET", what.path(), timeout_s=_READ_S)
        found: dict[str, C] = {}
        for raw in msgspec.json.decode(body, type=_List).items:
            try:
                one = decode(raw, kind, what.plural)
            except Unreadable as error:
                log.warning("%s", error)
                continue
            if one.metadata is not None and one.metadata.name:
                found[one.metadata.name] = one
        return found

    def pod(self, manifest: dict[str, Any], reader: Reader) -> Pod:
        """The manifest's pod, as the API server would have stored it."""
        pod = default_pod(pod_of(manifest), self._classes)
        for field, known in (
            ("priorityClassName", {**SYSTEM_PRIORITIES, **self._classes.priority}),
            ("runtimeClassName", self._classes.runtime),
        ):
            name = pod["spec"].get(field)
            says_it = field == "priorityClassName" and pod["spec"].get("priority") is not None
            if name and name not in known and not says_it:
                why = f"there is no such class, {name!r}, that could be read{self._because}"
                raise Unreadable(f"pod {_called(pod)}", f"spec.{field}", why)
        return reader.pod(pod, newcomer=True)

    @property
    def _because(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""


def _called(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata'].get('name')}"
