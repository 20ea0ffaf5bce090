"""Reads from the kubelet what each pod really got, and puts assignments right.

After every Allocate, as soon as the kubelet's account has it; and every few seconds, because the
agent may not have been there. A patch names the version that it is about: what anybody else wrote
in between is not lost, and the patch is made anew.
"""

import asyncio
import logging
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import NoReturn

import grpc.aio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.agent import wire
from bayplan.agent.counts import Counts, Told
from bayplan.agent.pods import Key, Place, Pod, PodsHere, Wanted, waiting_for
from bayplan.agent.truth import (
    Account,
    Case,
    Correction,
    Named,
    Places,
    Served,
    compare,
    name,
    named,
    real_places,
)
from bayplan.agent.units import Cell
from bayplan.kube.client import PASSING, PODS, Client
from bayplan.kube.transport import MERGE_PATCH, ApiError, TransportError
from bayplan.protobuf import BadMessage

log = logging.getLogger("bayplan")

ACCOUNT_S = 5.0  # for the kubelet's answer
CURRENT_S = 2.0  # for pods as they are now, while the kubelet waits for ours
RECORDED_S = 5.0  # the kubelet has taken a pod into its account by then
LATELY_S = 60.0  # whoever has what a corrected assignment named before is in the account by then
REFUSED_S = 300.0  # a correction that the API server will not have is tried again after it
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5  # it allows 100 questions a second
_LARGEST = 16 << 20  # bytes of the account; the kubelet's own limit
_DONE = {
    "written": "wrote the assignment",
    "swapped": "put right the assignment",
    "marked": "put right the annotations",
}


class Reconciler:
    """Knows which pod holds what; `Plugin` asks it which pod may be meant."""

    def __init__(
        self, client: Client, served: Served, pods: PodsHere, socket: str, counts: Counts
    ) -> None:
        self.served = served  # replaced when devices change
        self._client, self._clock, self._pods = client, client.clock, pods
        self._socket, self._counts = socket, counts
        self._settled: dict[tuple[str, Place], frozenset[str]] = {}
        self._recent: list[_Recent] = []  # allocations that are not in the account yet
        self._lately: dict[Named, float] = {}  # until when: of assignments that were corrected
        self._unwritten: dict[str, tuple[float, str]] = {}  # by pod uid: until when, and why
        self._woken = asyncio.Event()
        self._drift, self._left = Told(), Told()
        self._refused, self._troubles = Told(), Told()

    # What the plugins ask

    async def prefer(self, wanted: Wanted) -> frozenset[str] | None:
        """From memory; if nobody is known to wait, the pod may be newer than that: from the API."""
        try:
            async with self._clock.timeout(CURRENT_S):
                await self._pods.synced_once.wait()
                ids = self._waiting_for(self._pods.all(), wanted)
                if ids is None:
                    ids = self._waiting_for(await self._pods.read_now(), wanted)
                return ids
        except (ApiError, TransportError, TimeoutError, msgspec.MsgspecError) as error:
            self._counts.troubles += 1
            log.warning("which pod waits for %s cannot be told: %s", wanted.resource, error)
            return None

    def _waiting_for(self, pods: list[Pod], wanted: Wanted) -> frozenset[str] | None:
        taken = self._sharing(wanted.resource, self._taken_by_other_names(wanted.resource, pods))
        free = replace(wanted, available=wanted.available - taken)
        return waiting_for(pods, self.served.node, free, self._settled)

    def promised(self, resource: str) -> frozenset[str]:
        served, pods = self.served, self._pods.all()
        given = {
            cell
            for pod in pods
            if not pod.has_ended
            for held in pod.entries(served.node)
            for cell in served.cells(held.resource, (device.id for device in held.devices))
        }
        return self._sharing(resource, given | self._taken_by_other_names(resource, pods))

    def _taken_by_other_names(self, resource: str, pods: list[Pod]) -> set[Cell]:
        """The kubelet counts each resource by itself, and calls free what is taken by another. What
        pods held that have ended or are gone since is free."""
        now, here = self._clock.time(), {pod.uid for pod in pods if not pod.has_ended}
        recent = ((each.resource, each.ids) for each in self._recent if each.until > now)
        held = ((place[1], ids) for (uid, place), ids in self._settled.items() if uid in here)
        return {
            cell
            for other, ids in (*recent, *held)
            if other != resource
            for cell in self.served.cells(other, ids)
        }

    def _sharing(self, resource: str, cells: Set[Cell]) -> frozenset[str]:
        """The devices, or cores, of a resource that are made of some of these."""
        device_class, _ = self.served.vendors.resources[resource]
        units = self.served.units(resource) or {}
        return frozenset(
            id
            for id, unit in units.items()
            if any((device_class.name, core) in cells for core in unit.cores)
        )

    def allocated(self, resource: str, ids: frozenset[str]) -> None:
        now = self._clock.time()
        self._recent = [recent for recent in self._recent if recent.until > now]
        self._recent.append(_Recent(resource, ids, now + RECORDED_S))
        self._woken.set()

    # What the kubelet really did

    async def run(self, every_s: float) -> NoReturn:
        """Until cancelled."""
        await self._pods.synced_once.wait()
        while True:
            self._woken.clear()
            await self._settle()
            with suppress(TimeoutError):
                async with self._clock.timeout(every_s):
                    await self._woken.wait()

    async def _settle(self) -> None:
        """Rounds, until one finds nothing unfinished; for a while."""
        until, pause_s = self._clock.time() + RECORDED_S, FIRST_PAUSE_S
        while not await self._round() and self._clock.time() < until:
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _round(self) -> bool:
        """Whether nothing is unfinished; what failed is tried again in the next period."""
        try:
            account = await self._account()
            settled = await self._put_right(account)
            self._trouble(*(why for _, why in self._unwritten.values()))
            return settled
        except grpc.aio.AioRpcError as error:
            self._trouble(f"the kubelet's account of devices: {error.details()}")
        except TimeoutError:
            self._trouble(f"the kubelet's account of devices: none within {ACCOUNT_S:.0f} s")
        except BadMessage as error:
            self._trouble(f"the kubelet's account of devices: {error}")
        except (ApiError, TransportError) as error:
            self._trouble(f"assignments are not put right: {error}")
        return True

    def _trouble(self, *reasons: str) -> None:
        self._counts.troubles += self._troubles.new((why, why) for why in reasons)

    async def _account(self) -> Account:
        options = (*wire.OPTIONS, ("grpc.max_receive_message_length", _LARGEST))
        kubelet = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        async with kubelet as channel, self._clock.timeout(ACCOUNT_S):
            listed = await wire.call(channel, wire.LIST, wire.Pods)(wire.Empty())
        if listed is None:  # grpc's word for bytes that cannot be read
            raise BadMessage("it cannot be read")
        return account_of(listed)

    async def _put_right(self, account: Account) -> bool:
        pods, served = self._pods.all(), self.served
        self._settled = {
            (pod.uid, place): ids
            for pod in pods
            for place, ids in real_places(pod, account, served).items()
        }
        now = self._clock.time()
        self._lately = {device: until for device, until in self._lately.items() if until > now}
        self._unwritten = {uid: case for uid, case in self._unwritten.items() if case[0] > now}
        findings = compare(pods, account, served, self._lately.keys())
        self._counts.refused_assignments += self._refused.new(findings.refused)
        self._counts.drift += self._drift.new(findings.drift)
        done = [await self._write(correction) for correction in findings.corrections]
        known = {pod.key for pod in pods}
        strange = [key for key in account if key not in known and _served(account, key, served)]
        gone = [key for key in strange if not await self._is_here(key)]
        left = (case for key in gone for case in _left(key, _served(account, key, served)))
        self._counts.drift += self._left.new(left)
        return self._recorded(account) and all(done) and len(gone) == len(strange)

    def _recorded(self, account: Account) -> bool:
        """Whether the account has every recent allocation, or should have had it long ago."""
        held = {
            (place[1], id)
            for places in account.values()
            for place, ids in places.items()
            for id in ids
        }
        self._recent = [
            recent
            for recent in self._recent
            if recent.until > self._clock.time()
            and not {(recent.resource, id) for id in recent.ids} <= held
        ]
        return not self._recent

    async def _is_here(self, key: Key) -> bool:
        """Whether the API has the pod on this node; the watch may be late."""
        try:
            body = await self._client.request("GET", PODS.path(*key))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return msgspec.json.decode(body, type=_Bound).spec.node_name == self.served.node

    async def _write(self, correction: Correction) -> bool:
        """Whether nothing more can be done for now: not when the pod has changed meanwhile."""
        pod = correction.pod
        if pod.uid in self._unwritten:
            return True
        about = {
            "uid": pod.uid,
            "resourceVersion": pod.version,
            "annotations": correction.annotations,
        }
        body = msgspec.json.encode({"metadata": about})
        try:
            await self._client.request(
                "PATCH", PODS.path(*pod.key), body=body, content_type=MERGE_PATCH
            )
        except ApiError as error:
            if error.status in PASSING or error.status == 401:
                raise
            if error.status not in (404, 409):  # a no to this pod is none to the others
                why = f"the assignment of {name(pod.key)} is not put right: {error}"
                self._unwritten[pod.uid] = self._clock.time() + REFUSED_S, why
            return error.status != 409
        until = self._clock.time() + LATELY_S
        self._lately |= dict.fromkeys(named([pod], self.served.node), until)
        match correction.what:
            case "written":
                self._counts.written += 1
            case "swapped":
                self._counts.swapped += 1
            case "marked":
                self._counts.marked += 1
        log.info("%s of %s: %s", _DONE[correction.what], name(pod.key), _shown(correction))
        return True


class _BoundSpec(Struct, rename="camel"):
    node_name: str | None = None


class _Bound(Struct):
    spec: _BoundSpec


class _Recent(Struct, frozen=True):
    resource: str
    ids: frozenset[str]
    until: float


def _served(account: Account, key: Key, served: Served) -> Places:
    """What the kubelet says that a pod holds of what we serve."""
    return {
        place: ids
        for place, ids in account[key].items()
        if ids and served.units(place[1]) is not None
    }


def _left(key: Key, places: Places) -> Iterator[Case]:
    for place, ids in places.items():
        words = f"{place[1]} {', '.join(sorted(ids))} is held by {name(key)}, which is gone"
        yield (key, place), words


def account_of(listed: wire.Pods) -> Account:
    """A name that two pods share says nothing about either."""
    account: dict[Key, dict[Place, frozenset[str]]] = {}
    twice: set[Key] = set()
    for pod in listed.pods:
        key = (pod.namespace, pod.name)
        if key in account:
            twice.add(key)
        places = account[key] = {}
        for container in pod.containers:
            for some in container.devices:  # one for each NUMA node
                place = (container.name, some.resource)
                places[place] = places.get(place, frozenset()) | frozenset(some.ids)
    return {key: places for key, places in account.items() if key not in twice}


def _shown(correction: Correction) -> str:
    return "; ".join(
        f"{key}={value}"
        for key, value in correction.annotations.items()
        if not key.endswith("/assignment")
    )
