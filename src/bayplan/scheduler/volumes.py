"""What a pod's volumes need before it is bound.

A claim that waits for its first pod is told the pod's node in an annotation; somebody else makes
the volume, and the watch tells of it. That can take minutes, so `prepare` should not hold a worker
that others need. What was asked for is not taken back when it fails: as with kube-scheduler, the
pod is tried again and the claim's annotation then says where.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import msgspec
from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.core.model.volumes import Claim, Volume
from bayplan.kube.client import CLAIMS, Client, Retry
from bayplan.kube.clock import Clock
from bayplan.kube.transport import MERGE_PATCH, ApiError, BeforeSend, TransportError
from bayplan.kube.volumes import SELECTED_NODE

BIND_S = 600.0  # kube-scheduler's bindTimeoutSeconds
_TRIES = Retry(tries=4)  # the same annotation a second time does no harm


class NotReady(Exception):
    """The pod cannot be bound there now; the text says why."""


class News(Struct, frozen=True):
    """A claim as it was when something happened to it or its volume; None: it is gone."""

    key: str
    claim: Claim | None


class Claims(Protocol):
    """What is known of claims now, and word of every change."""

    def claim(self, key: str) -> Claim | None: ...
    def volume(self, name: str) -> Volume | None: ...
    def labels(self, node: str) -> Mapping[str, str] | None: ...

    def follow(self, pod: Pod) -> "AbstractContextManager[asyncio.Queue[News | None]]":
        """News of the pod's claims, in order and complete; None when the pod is gone."""


class KnownClaims:
    """The engine's claims. It hears of events as a recorder does, after the engine."""

    def __init__(self, engine: Engine) -> None:
        self._cluster = engine.cluster
        self._following: dict[str, list[asyncio.Queue[News | None]]] = {}  # by claim, by pod's uid

    def claim(self, key: str) -> Claim | None:
        return self._cluster.storage.claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self._cluster.storage.volumes.get(name)

    def labels(self, node: str) -> Mapping[str, str] | None:
        row = self._cluster.rows.get(node)
        found = None if row is None else self._cluster.nodes[row]
        return None if found is None else found.labels

    @contextmanager
    def follow(self, pod: Pod) -> Iterator[asyncio.Queue[News | None]]:
        queue: asyncio.Queue[News | None] = asyncio.Queue()
        names = dict.fromkeys((pod.uid, *pod.row.claims))
        for name in names:
            self._following.setdefault(name, []).append(queue)
        try:
            yield queue
        finally:
            for name in names:
                self._following[name].remove(queue)
                if not self._following[name]:
                    del self._following[name]

    def step(self, event: on.Event, now: float, effects: Sequence[do.Effect]) -> None:
        if not self._following:
            return
        match event:
            case on.ClaimSeen(claim):
                self._tell(claim.key)
            case on.ClaimGone(key):
                self._tell(key)
            case on.VolumeSeen(volume):
                for key in self._cluster.storage.claims_on.get(volume.name, ()):
                    self._tell(key)
            case on.PodGone(uid):
                for queue in self._following.get(uid, ()):
                    queue.put_nowait(None)

    def flush(self) -> None:
        """Nothing is kept back."""

    def _tell(self, key: str) -> None:
        for queue in self._following.get(key, ()):
            queue.put_nowait(News(key, self.claim(key)))


class VolumeBinder:
    """Has claims made where their first pod goes, and waits for it."""

    def __init__(
        self, client: Client, claims: Claims, clock: Clock, before_send: BeforeSend | None = None
    ) -> None:
        self._client, self._claims, self._clock = client, claims, clock
        self._before_send = before_send

    async def prepare(self, placement: do.Placement) -> None:
        """Returns when every claim of the pod has a volume that its node can use."""
        pod, node = placement.pod, placement.node
        if all((claim := self._claims.claim(key)) and claim.bound for key in pod.row.claims):
            return
        with self._claims.follow(pod) as news:
            waiting = await self._select(pod, node)
            try:
                async with self._clock.timeout(BIND_S):
                    while not self._are_bound(waiting, node):
                        self._hear(await news.get(), waiting, node)
            except TimeoutError:
                raise NotReady(f"binding volumes: not done after {BIND_S:.0f} s") from None

    async def _select(self, pod: Pod, node: str) -> dict[str, Claim]:
        """Tells claims without a volume their node. Gives them, with the annotation if seen."""
        waiting: dict[str, Claim] = {}
        for key in dict.fromkeys(pod.row.claims):
            claim = self._claims.claim(key)
            if claim is None:
                raise NotReady(f'persistentvolumeclaim "{key.partition("/")[2]}" not found')
            if claim.bound:
                continue
            if claim.selected_node is None:
                await self._annotate(claim, node)
            elif claim.selected_node != node:
                at = claim.selected_node
                raise NotReady(f'persistentvolumeclaim "{claim.name}" is made for node "{at}"')
            waiting[key] = claim
        return waiting

    async def _annotate(self, claim: Claim, node: str) -> None:
        metadata = {"uid": claim.uid, "annotations": {SELECTED_NODE: node}}
        try:
            await self._client.request(
                "PATCH",
                CLAIMS.path(claim.namespace, claim.name),
                body=msgspec.json.encode({"metadata": metadata}),
                content_type=MERGE_PATCH,
                before_send=self._before_send,
                retry=_TRIES,
            )
        except (ApiError, TransportError) as error:
            what = f'persistentvolumeclaim "{claim.name}"'
            raise NotReady(f"{what} cannot be told its node: {error}") from error

    def _are_bound(self, waiting: Mapping[str, Claim], node: str) -> bool:
        labels = self._claims.labels(node)
        if labels is None:
            raise NotReady(f'binding volumes: node "{node}" is gone')
        ready = True
        for key in waiting:
            claim = self._claims.claim(key)
            volume = self._claims.volume(claim.volume) if claim and claim.volume else None
            if volume is not None and not volume.reaches(labels):
                text = f'pv "{volume.name}" node affinity doesn\'t match node "{node}"'
                raise NotReady(f"binding volumes: {text}")
            ready = ready and volume is not None and claim is not None and claim.bound
        return ready

    def _hear(self, news: News | None, waiting: dict[str, Claim], node: str) -> None:
        """A claim whose annotation comes and then goes could not be made there."""
        if news is None:
            raise NotReady("binding volumes: pod does not exist any more")
        before, claim = waiting.get(news.key), news.claim
        if before is None:
            return  # it had its volume from the first
        if claim is None or claim.uid != before.uid:
            raise NotReady(f'binding volumes: persistentvolumeclaim "{before.name}" is gone')
        if before.selected_node == node and claim.selected_node != node:
            raise NotReady(f'binding volumes: provisioning failed for PVC "{claim.name}"')
        if claim.selected_node not in (None, node):
            raise NotReady(f'binding volumes: PVC "{claim.name}" was taken to another node')
        waiting[news.key] = claim


_: type[Claims] = KnownClaims
