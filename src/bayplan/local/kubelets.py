"""Pretend nodes: they register, stay Ready, renew their leases, and let bound pods "run".

They talk to any API server through a Client, as kubelets do; nothing is really started. A pod
runs for `bayplan.dev/run-seconds`, or until it is deleted, and ends with `bayplan.dev/exit-code`
(0 if nothing is said). A node whose annotation
`bayplan.dev/pretend` is `refuse` turns new pods away, and one where it is `fail` is not ready.
"""

import asyncio
import heapq
import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from bayplan.kube.client import LEASES, NODES, PODS, Client, Retry
from bayplan.kube.read import Reader
from bayplan.kube.reflector import Reflector, Watched
from bayplan.kube.transport import MERGE_PATCH, STRATEGIC_PATCH, ApiError, TransportError
from bayplan.local.metadata import timestamp
from bayplan.local.statuses import (
    Seen,
    SeenNode,
    ended,
    host,
    node_conditions,
    node_info,
    restarted,
    running,
)

Json = dict[str, Any]
log = logging.getLogger("bayplan.local")

RUN_SECONDS = "bayplan.dev/run-seconds"
EXIT_CODE = "bayplan.dev/exit-code"
PRETEND = "bayplan.dev/pretend"
LEASE_SPACE = "kube-node-lease"
LEAST_RUN_S = 1.0  # of containers that are started again and again
LEASE_EVERY_S = 10.0  # the kubelet's
WORKERS = 16
_AGAIN = Retry(tries=5, post=True)
_NOT_READY = "node.kubernetes.io/not-ready"
_encode = msgspec.json.Encoder().encode


class Kubelets:
    """All pretend nodes of a cluster. A node is one of ours if it was given here."""

    def __init__(self, client: Client, nodes: Iterable[Json], rng: random.Random) -> None:
        self._client, self._clock, self._rng = client, client.clock, rng
        self._first = list(nodes)
        self._ours: dict[str, bool] = {}  # names: whether the node has a lease
        self._added = 0  # nodes, of all time: each has an address of its own
        self._nodes: dict[str, SeenNode] = {}
        self._pods: dict[str, dict[str, Seen]] = {}  # by node and uid
        self._running: set[str] = set()  # uids whose start was written
        self._restarts: Counter[str] = Counter()  # of containers, by their pod's uid
        self._jobs: deque[tuple[str, Seen]] = deque()  # what to do, and to which pod
        self._due: list[tuple[float, int, str, Seen]] = []  # a heap of the same, for later
        self._numbers = itertools.count()
        self._reader = Reader()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._busy = 0
        self.registered = asyncio.Event()
        self.failures = 0  # requests that were given up

    async def run(self) -> None:
        """Until cancelled."""
        for node in self._first:
            await self.add(node)
        self.registered.set()
        pods = Watched(PODS.path(), msgspec.json.Decoder(Seen).decode)
        nodes = Watched(NODES.path(), msgspec.json.Decoder(SeenNode).decode)
        async with asyncio.TaskGroup() as group:
            group.create_task(Reflector(self._client, pods, _PodSink(self)).run(), name="pods")
            group.create_task(Reflector(self._client, nodes, _NodeSink(self)).run(), name="nodes")
            group.create_task(self._renew(), name="leases")
            group.create_task(self._tick(), name="due")
            for _ in range(WORKERS):
                group.create_task(self._work(), name="pod worker")

    # ---- nodes

    async def add(self, node: Json) -> None:
        """One more node joins the cluster."""
        name, now = node["metadata"]["name"], timestamp(self._clock.wall())
        self._added += 1
        high, low = divmod(self._added, 256)
        address = f"172.16.{high}.{low}"
        self._ours[name] = False
        self._pods[name] = {}
        status = {
            **node["status"],
            "conditions": node_conditions(now, "True", "KubeletReady", "the pretend node is ready"),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": node_info(name),
        }
        with suppress(ApiError):  # it is there already
            body = _encode({**node, "status": status})
            await self._client.request("POST", NODES.path(), body=body, retry=_AGAIN)

    async def _renew(self) -> None:
        """Each node's lease once in ten seconds, spread evenly."""
        while True:
            for name in (names := list(self._ours)):
                await self._clock.sleep(LEASE_EVERY_S / len(names))
                node = self._nodes.get(name)
                if node is not None and _pretends(node) != "fail":
                    await self._renew_one(name)
            if not names:
                await self._clock.sleep(LEASE_EVERY_S)

    async def _renew_one(self, name: str) -> None:
        now = f"{timestamp(self._clock.wall())[:-1]}.000000Z"
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
        about = {"name": name, "namespace": LEASE_SPACE}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        body = {**kind, "metadata": about, "spec": spec}
        try:
            if not self._ours.get(name):
                path = LEASES.path(LEASE_SPACE)
                with suppress(ApiError):  # it is there already
                    await self._client.request("POST", path, body=_encode(body))
                self._ours[name] = True
                return
            path, patch = LEASES.path(LEASE_SPACE, name), _encode({"spec": spec})
            await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        except (ApiError, TransportError) as error:
            self.failures += 1
            if isinstance(error, ApiError) and error.status == 404:
                self._ours[name] = False  # somebody deleted it: the next one is new

    def see_node(self, node: SeenNode) -> None:
        name = node.metadata["name"]
        if name not in self._ours:
            return
        before, self._nodes[name] = self._nodes.get(name), node
        wanted = _pretends(node) == "fail"
        if wanted != (_pretends(before) == "fail" if before else False):
            marker = Seen({"uid": f"node/{name}", "name": name}, {"nodeName": name})
            self._do("fail" if wanted else "recover", marker)

    def lose_node(self, node: SeenNode) -> None:
        self._nodes.pop(node.metadata["name"], None)

    async def vanish(self, name: str) -> None:
        """The machine is gone, and its Node object with it. Its pods stay, as they would."""
        self._ours.pop(name, None)
        await self._client.request("DELETE", NODES.path(name=name), retry=_AGAIN)

    async def pretend(self, name: str, what: str) -> None:
        """`fail`, `refuse`, or nothing in particular, which is what an empty string says."""
        patch = _encode({"metadata": {"annotations": {PRETEND: what or None}}})
        path = NODES.path(name=name)
        await self._client.request(
            "PATCH", path, body=patch, content_type=MERGE_PATCH, retry=_AGAIN
        )

    async def _mark(self, name: str, ready: bool) -> None:
        """What the kubelet and the node controller would write together."""
        now = timestamp(self._clock.wall())
        if ready:
            said = node_conditions(now, "True", "KubeletReady", "the pretend node is ready")
        else:
            said = node_conditions(
                now, "False", "KubeletNotReady", "the pretend node was told to fail"
            )
        node = self._nodes.get(name)
        kept = (node.spec.get("taints") or ()) if node else ()
        taints = [taint for taint in kept if taint.get("key") != _NOT_READY]
        if not ready:
            taints += [{"key": _NOT_READY, "effect": e} for e in ("NoSchedule", "NoExecute")]
        path = NODES.path(name=name)
        await self._client.request(
            "PATCH",
            NODES.path(name=name, sub="status"),
            body=_encode({"status": {"conditions": said[-1:]}}),  # only readiness changes
            content_type=STRATEGIC_PATCH,
            retry=_AGAIN,
        )
        await self._client.request(
            "PATCH",
            path,
            body=_encode({"spec": {"taints": taints or None}}),
            content_type=MERGE_PATCH,
            retry=_AGAIN,
        )

    # ---- pods

    def see_pods(self, pods: list[Seen]) -> None:
        """All there are."""
        here = {pod.uid for pod in pods}
        for known in self._pods.values():
            for uid in [uid for uid in known if uid not in here]:
                del known[uid]
                self._running.discard(uid)
        for pod in pods:
            self.see_pod(pod)

    def see_pod(self, pod: Seen) -> None:
        known = self._pods.get(pod.node)
        if known is None:
            return
        if pod.metadata.get("deletionTimestamp"):
            self._do("remove", pod)
            return
        new = pod.uid not in known
        known[pod.uid] = pod
        if new and not pod.has_ended:
            self._do("start", pod)

    def end_pod(self, uid: str) -> None:
        """Its work is done, if it runs."""
        for known in self._pods.values():
            if uid in known:
                self._do("end", known[uid])

    def lose_pod(self, pod: Seen) -> None:
        self._pods.get(pod.node, {}).pop(pod.uid, None)
        self._running.discard(pod.uid)
        self._restarts.pop(pod.uid, None)

    def _do(self, what: str, pod: Seen) -> None:
        self._jobs.append((what, pod))
        self._arrived.set()

    def _later(self, seconds: float, what: str, pod: Seen) -> None:
        at = self._clock.time() + seconds
        heapq.heappush(self._due, (at, next(self._numbers), what, pod))
        self._idle.set()

    async def _tick(self) -> None:
        while True:
            now = self._clock.time()
            while self._due and self._due[0][0] <= now:
                _, _, what, pod = heapq.heappop(self._due)
                self._do(what, pod)
            self._idle.clear()
            with suppress(TimeoutError):
                async with self._clock.timeout(self._due[0][0] - now if self._due else None):
                    await self._idle.wait()

    async def _work(self) -> None:
        while True:
            while not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
            what, pod = self._jobs.popleft()
            self._busy += 1
            try:
                await self._carry_out(what, pod)
            except (ApiError, TransportError) as error:
                if not isinstance(error, ApiError) or error.status not in (404, 409):
                    self.failures += 1
                    self._later(1.0, what, pod)
            except Exception:  # an odd object is no reason to leave the others alone
                self.failures += 1
                log.exception("%s of pod %s on node %s failed", what, pod.uid, pod.node)
            finally:
                self._busy -= 1

    async def _carry_out(self, what: str, pod: Seen) -> None:
        match what:
            case "start":
                await self._start(pod)
            case "end":
                if pod.uid in self._running:
                    await self._end(pod)
            case "remove":
                await self._remove(pod)
            case "fail":
                await self._mark(pod.node, ready=False)
            case "recover":
                await self._mark(pod.node, ready=True)

    async def _start(self, pod: Seen) -> None:
        node = self._nodes.get(pod.node)
        if node is None or _pretends(node) == "fail":
            if pod.uid in self._pods.get(pod.node, {}):
                self._later(1.0, "start", pod)  # nobody is there yet to start it
            return
        refusal = self._refusal(pod, node)
        if refusal is not None:
            reason, text = refusal
            await self._patch(pod, {"phase": "Failed", "reason": reason, "message": text})
            return
        now = timestamp(self._clock.wall())
        await self._patch(pod, {**running(pod, now, self._address()), **host(node)})
        self._running.add(pod.uid)
        seconds = _run_seconds(pod)
        if seconds is not None:
            self._later(seconds, "end", pod)

    def _address(self) -> str:
        return ".".join(str(part) for part in (10, *self._rng.randbytes(3)))

    def _refusal(self, pod: Seen, node: SeenNode) -> tuple[str, str] | None:
        """Why this node does not admit a pod, in a kubelet's words."""
        if _pretends(node) == "refuse":
            return "UnexpectedAdmissionError", f"the pretend node {pod.node} was told to refuse"
        room = self._reader.node({"metadata": node.metadata, "status": node.status}).allocatable
        used: Counter[str] = Counter()
        for other in self._pods[pod.node].values():
            if other.uid != pod.uid and other.uid in self._running:
                used += self._asked(other)
        for name, amount in self._asked(pod).items():
            if "/" in name and name not in room:
                continue  # what a node does not offer is not the kubelet's business
            if used[name] + amount > room.get(name, 0):
                return f"OutOf{name}", (
                    f"Node didn't have enough resource: {name}, requested: {amount}, "
                    f"used: {used[name]}, capacity: {room.get(name, 0)}"
                )
        return None

    def _asked(self, pod: Seen) -> Counter[str]:
        read = self._reader.pod({"metadata": pod.metadata, "spec": pod.spec})
        return Counter({"pods": 1, **dict(read.row.requests)})

    async def _end(self, pod: Seen) -> None:
        known = self._pods.get(pod.node, {}).get(pod.uid)
        now, code = timestamp(self._clock.wall()), _exit_code(pod)
        if code and pod.spec.get("restartPolicy") != "Never":
            self._restarts[pod.uid] += 1
            await self._patch(pod, restarted(pod, now, self._restarts[pod.uid]))
            self._later(max(_run_seconds(pod) or 0.0, LEAST_RUN_S), "end", pod)
            return
        status = ended(known or pod, now, code)
        await self._patch(pod, status)
        self._running.discard(pod.uid)
        if known is not None:
            known.status = {**known.status, "phase": status["phase"]}

    async def _patch(self, pod: Seen, status: Json) -> None:
        path = PODS.path(pod.metadata["namespace"], pod.metadata["name"], "status")
        body = _encode({"metadata": {"uid": pod.uid}, "status": status})
        await self._client.request(
            "PATCH", path, body=body, content_type=STRATEGIC_PATCH, retry=_AGAIN
        )

    async def _remove(self, pod: Seen) -> None:
        path = PODS.path(pod.metadata["namespace"], pod.metadata["name"])
        body = _encode({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})
        await self._client.request("DELETE", path, body=body, retry=_AGAIN)


class _PodSink:
    def __init__(self, kubelets: Kubelets) -> None:
        self._kubelets = kubelets

    def replace(self, items: list[Seen], resource_version: str) -> None:
        self._kubelets.see_pods(items)

    def put(self, item: Seen) -> None:
        self._kubelets.see_pod(item)

    def drop(self, item: Seen) -> None:
        self._kubelets.lose_pod(item)

    def synced(self) -> None:
        pass

    def bad(self, line: bytes | Raw, error: Exception) -> None:
        self._kubelets.failures += 1


class _NodeSink:
    def __init__(self, kubelets: Kubelets) -> None:
        self._kubelets = kubelets

    def replace(self, items: list[SeenNode], resource_version: str) -> None:
        for item in items:
            self._kubelets.see_node(item)

    def put(self, item: SeenNode) -> None:
        self._kubelets.see_node(item)

    def drop(self, item: SeenNode) -> None:
        self._kubelets.lose_node(item)

    def synced(self) -> None:
        pass

    def bad(self, line: bytes | Raw, error: Exception) -> None:
        self._kubelets.failures += 1


def _pretends(node: SeenNode) -> str:
    return str((node.metadata.get("annotations") or {}).get(PRETEND) or "")


def _exit_code(pod: Seen) -> int:
    text = (pod.metadata.get("annotations") or {}).get(EXIT_CODE) or "0"
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _run_seconds(pod: Seen) -> float | None:
    text = (pod.metadata.get("annotations") or {}).get(RUN_SECONDS)
    with suppress(TypeError, ValueError):
        seconds = float(text)  # type: ignore[arg-type]
        return seconds if 0 <= seconds < float("inf") else None
    return None
