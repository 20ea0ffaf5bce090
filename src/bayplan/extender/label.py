"""The label by which the Service finds the replica that leads.

The leader puts it on its own pod and takes it from every other, since one that was killed cannot
take off its own. Outside a cluster there is no pod, and nothing to do.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from bayplan.kube.client import PODS, Client
from bayplan.kube.clock import Backoff
from bayplan.kube.transport import MERGE_PATCH, ApiError, BeforeSend, Fenced, TransportError
from bayplan.scheduler.fence import Fence

log = logging.getLogger("bayplan")

LABEL = "bayplan.dev/extender-leader"
AGAIN_S = 60.0


class Itself(Struct, frozen=True):
    """The pod that this process runs in."""

    namespace: str
    name: str


class LeaderLabel:
    def __init__(self, client: Client, itself: Itself, fence: Fence) -> None:
        self._client, self._itself, self._fence = client, itself, fence
        self._leads = False
        self._turned = asyncio.Event()
        self._turned.set()  # a container that starts again may carry the label of before

    def turn(self, leads: bool) -> None:
        """From now on this replica leads, or does not."""
        self._leads = leads
        self._turned.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(TimeoutError):  # somebody may take the label off by hand
                async with self._client.clock.timeout(AGAIN_S):
                    await self._turned.wait()
            self._turned.clear()
            backoff = Backoff(self._client.clock, self._client.rng, first_s=0.2, most_s=5.0)
            while not self._turned.is_set():
                leads = self._leads
                try:
                    await self._write(leads)
                    break
                except (ApiError, TransportError, Fenced, msgspec.MsgspecError) as error:
                    log.warning("the label %s: %s", LABEL, error)
                await backoff.pause()

    async def _write(self, leads: bool) -> None:
        here = self._itself
        if not leads:
            await self._patch(here.name, None)
            return
        check = self._fence.of_now()  # or another leads by then, and has the label
        mine = await self._patch(here.name, "true", check)
        if mine is None:
            return
        params = {"labelSelector": selector(mine.metadata.labels or {})}
        found = await self._client.request("GET", PODS.path(here.namespace), params=params)
        for other in msgspec.json.decode(found, type=_List).items or ():
            if other.metadata.name != here.name:
                await self._patch(other.metadata.name, None, check)

    async def _patch(
        self, name: str, value: str | None, check: BeforeSend | None = None
    ) -> "_Pod | None":
        """The pod, if it is there."""
        try:
            body = await self._client.request(
                "PATCH",
                PODS.path(self._itself.namespace, name),
                body=msgspec.json.encode({"metadata": {"labels": {LABEL: value}}}),
                content_type=MERGE_PATCH,
                before_send=check,
            )
            return msgspec.json.decode(body, type=_Pod)
        except ApiError as error:
            if error.status != 404 or value:
                raise
            return None


def selector(labels: Mapping[str, str]) -> str:
    """Pods like one with these labels that say they lead. The first two differ by generation."""
    own = {"pod-template-hash", "controller-revision-hash", LABEL}
    shared = [f"{key}={value}" for key, value in sorted(labels.items()) if key not in own]
    return ",".join([f"{LABEL}=true", *shared])


class _Metadata(Struct):
    name: str
    labels: dict[str, str] | None = None


class _Pod(Struct):
    metadata: _Metadata


class _List(Struct):
    items: list[_Pod] | None = None
