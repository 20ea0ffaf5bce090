"""What kube-scheduler asks, answered by the engine; one question at a time, on the loop's thread.

Before each answer the engine hears what has arrived, so that the answer is as new as can be.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

import numpy as np
from msgspec import Raw

from bayplan.core.engine.offers import Filtered
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.state.arrays import Ints
from bayplan.extender import wire
from bayplan.extender.binds import Binds
from bayplan.extender.preemptor import Preemptor
from bayplan.extender.server import NotLeading
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import ApiError, TransportError
from bayplan.scheduler.loop import Loop

log = logging.getLogger("bayplan")

MOST_ASKED = 10_000  # pods that are remembered from a filter to their bind
NOBODY = Pod("", "", "", {}, RowKey())
_STEPS = (np.arange(101) + 5) // 10  # an extender's score, for each of ours


class Answers:
    """The verbs. `may_decide`: this replica leads, and its lease holds."""

    def __init__(
        self,
        loop: Loop,
        binds: Binds,
        client: Client,
        preemptor: Preemptor | None,
        may_decide: Callable[[], bool],
    ) -> None:
        self._loop, self._engine, self._binds = loop, loop.engine, binds
        self._client, self._clock, self._reader = client, client.clock, loop.watches.reader
        self.preemptor, self._may_decide = preemptor, may_decide
        self._pods: OrderedDict[str, Pod] = OrderedDict()  # by uid: filtered, not bound
        self._last: tuple[bytes, Pod] = b"", NOBODY
        # The last one: which pod, what was found, and the names that passed as they were told.
        self._filtered: tuple[Pod, Filtered | None, bytes] = NOBODY, None, b""
        self.counts: Counter[tuple[str, str]] = Counter()  # by verb and result

    @property
    def expected(self) -> int:
        return len(self._engine.offers.until)

    async def filter(self, args: wire.FilterArgs) -> wire.FilterResult:
        pod = self._begin(args.pod)
        if not pod.row.devices:
            self.counts["filter", "passed"] += 1
            return args.passed(args.names)
        if there := self._bound_to(pod.uid):  # what it has must not be in its own way
            self.counts["filter", "later"] += 1
            words = f"pod {pod.key} is bound to {there}, or will be in a moment"
            return wire.FilterResult(error=words)
        offers, now = self._engine.offers, self._clock.time()
        if pod.uid in offers.until or offers.next_end <= now:
            self._loop.step(on.PodNotExpected(pod.uid), now)
        found = offers.filter(pod, args.names)
        self._filtered = pod, found, wire.encode(found.passed)
        if found.best:
            self._loop.step(on.PodExpected(pod, found.best), now)
            self._remember(pod)
        elif found.soon:
            self.counts["filter", "later"] += 1
            words = "only pods that were offered devices a moment ago are in the way; try again"
            return wire.FilterResult(error=words)
        self._look_for_room(pod, found, now)
        self.counts["filter", "passed" if found.best else "refused"] += 1
        return args.passed(found.passed, found.refused, found.hopeless)

    def _look_for_room(self, pod: Pod, found: Filtered, now: float) -> None:
        if self.preemptor is None:
            return
        if found.best or not found.refused:
            self.preemptor.forget(pod.uid)
        else:
            self.preemptor.refused(pod, found.refused, now)

    async def prioritize(self, args: wire.ScoreArgs) -> list[wire.HostPriority]:
        """How much better than the worst of these nodes each is; those that are not are left out,
        as kube-scheduler takes them for 0. What is added to all changes no order, and most nodes
        are equal: to read hundreds of them costs it more than the rest of the question."""
        pod = self._begin(args.pod)
        self.counts["prioritize", "scored"] += 1
        if not pod.row.devices:
            return []
        names, scores = self._scores(pod, args)
        steps = _STEPS.take(scores)
        steps -= steps.min(initial=_STEPS[-1])
        better = steps.nonzero()[0].tolist()
        return [wire.HostPriority(names[at], int(steps[at])) for at in better]

    def _scores(self, pod: Pod, args: wire.ScoreArgs) -> tuple[list[str], Ints]:
        """kube-scheduler filters and scores a pod on one picture of the cluster, and asks about the
        nodes that passed a moment ago: they have the scores of that moment."""
        before, found, told = self._filtered
        same = before is pod and found is not None
        if found is not None and same and told == bytes(args.listed):  # and its names are not read
            return found.passed, found.scores()
        names = args.names
        if found is not None and same and found.passed == names:  # told in another form
            return names, found.scores()
        return names, self._engine.offers.scores(pod, names)

    async def preempt(self, args: wire.PreemptArgs) -> wire.PreemptResult:
        pod = self._begin(args.pod)
        kept: dict[str, wire.MetaVictims] = {}
        for node, given in args.victims.items():
            victims = self._engine.offers.victims(pod, node, given.uids)
            if victims:
                kept[node] = wire.MetaVictims.of(victims, given.pdb_violations)
        self.counts["preempt", "kept" if kept else "refused"] += 1
        return wire.PreemptResult(kept)

    async def bind(self, args: wire.BindArgs) -> wire.BindResult:
        try:
            why, result = await self._bind(args)
        except NotLeading:
            self.counts["bind", "not leading"] += 1
            raise
        except Exception:
            self.counts["bind", "error"] += 1
            raise
        self.counts["bind", result] += 1
        return wire.BindResult(why)

    async def _bind(self, args: wire.BindArgs) -> tuple[str, str]:
        """Why not, and what became of it. A bind that is asked for again has one outcome."""
        self._must_lead()
        uid, name = args.pod_uid, f"{args.pod_namespace}/{args.pod_name}"
        pod = self._pods.pop(uid, None)
        self._hear()
        if pod is None and uid not in self._binds.asked and not self._bound_to(uid):
            found = await self._read(args)
            if isinstance(found, str):
                return found, "error"
            pod = found
            self._must_lead()
            self._hear()
        # Nothing is awaited from here until the bind has begun.
        asked = self._binds.asked.get(uid)
        there = asked.node if asked else self._bound_to(uid) or (pod.node if pod else "")
        if there and there != args.node:
            return f"pod {name} is bound to {there}", "again"
        if there and asked is None:
            return "", "again"
        if asked is None:
            assert pod is not None
            if pod.key != name:
                return f"pod {name} has not the uid {uid}", "error"
            why = self._decide(pod, args.node)
            if why:
                return why, "refused"
            asked = self._binds.asked[uid]
        outcome = await asyncio.shield(asked.outcome)  # a client that leaves ends no bind
        if outcome.bound:
            return "", "bound"
        return f"binding pod {name} to {args.node} failed: {outcome.why}", "error"

    def _decide(self, pod: Pod, node: str) -> str:
        """Devices for the pod on the node, and its bind begun; or why not."""
        effects = self._loop.step(on.BindAsked(pod, node), self._clock.time())
        for effect in effects:
            if isinstance(effect, do.Refuse):
                return f"pod {pod.key} does not fit on node {node}: {effect.refusal.message}"
        return ""

    def _bound_to(self, uid: str) -> str:
        """Where a pod is, as far as we know; empty if nowhere."""
        cluster = self._engine.cluster
        resident = cluster.pods.get(uid)
        return cluster.name(resident.row) if resident else cluster.orphan_nodes.get(uid, "")

    async def _read(self, args: wire.BindArgs) -> Pod | str:
        """A pod that was not filtered here, or long ago."""
        path = PODS.path(args.pod_namespace, args.pod_name)
        name = f"{args.pod_namespace}/{args.pod_name}"
        try:
            pod = self._reader.live_pod(await self._client.request("GET", path))
        except ApiError as error:
            return f"pod {name} is gone" if error.status == 404 else str(error)
        except TransportError as error:
            return str(error)
        if pod is None:
            return f"pod {name} has ended"
        if pod.uid != args.pod_uid:
            return f"pod {name} was made again: its uid is not {args.pod_uid}"
        return pod

    def _begin(self, raw: Raw) -> Pod:
        self._must_lead()
        self._hear()
        text = bytes(raw)
        if text != self._last[0]:  # prioritize comes with the pod of the filter before it
            self._last = text, self._reader.pod(raw)
        return self._last[1]

    def _hear(self) -> None:
        """All of it: a bind whose failure is not heard of would pass for done."""
        while self._loop.inbox:
            self._loop.hear()

    def _must_lead(self) -> None:
        if not self._may_decide():
            raise NotLeading
        if not self._loop.is_ready:  # without an election everybody leads from the start
            raise NotLeading("the extender has not read the cluster yet")

    def _remember(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        self._pods.move_to_end(pod.uid)
        if len(self._pods) > MOST_ASKED:
            self._pods.popitem(last=False)
