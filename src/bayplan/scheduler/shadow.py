"""A dry run beside another scheduler: decide for every pod, touch none, tell where we differ."""

import asyncio
import logging
from collections import Counter

from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.scheduler.inbox import Inbox

log = logging.getLogger("bayplan")


class Shadow:
    """Stands in the writer's place, and hears as a recorder what really happened."""

    def __init__(self, engine: Engine, inbox: Inbox) -> None:
        self._inbox = inbox
        self._profiles = list(engine.profiles)
        self._plans: dict[str, str] = {}  # by uid: the node that we would have taken
        self._preemptions: dict[str, str] = {}  # by uid: what we last said
        self.compared: Counter[str] = Counter()  # agreed, differed
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def adopt(self, pod: Pod) -> Pod:
        """Every waiting pod is ours; of a scheduler that we do not know, by the first profile."""
        if pod.node or pod.scheduler in self._profiles:
            return pod
        return replace(pod, scheduler=self._profiles[0])

    # ---- the writer's part

    @property
    def queued(self) -> dict[str, int]:
        return {}

    def bind(self, effect: do.Bind) -> None:
        pod, node = effect.placement.pod, effect.placement.node
        self._plans[pod.uid] = node
        self.done["plan"] += 1
        log.info("dry run: pod %s would go to %s", pod.key, node)
        self._inbox.add(on.BindDone(pod.uid))

    def refuse(self, effect: do.Refuse) -> None:
        log.info("dry run: pod %s would wait: %s", effect.pod.key, effect.refusal.sentence)

    def preempt(self, effect: do.Preempt) -> None:
        """Nobody is deleted, so nobody must wait for it. The same again is no news."""
        names = ", ".join(victim.key for victim in effect.victims)
        plan = f"would preempt {names} on {effect.node}"
        if self._preemptions.get(effect.pod.uid) != plan:
            self._preemptions[effect.pod.uid] = plan
            self.done["preemption"] += 1
            log.info("dry run: pod %s %s", effect.pod.key, plan)
        for victim in effect.victims:
            self._inbox.add(on.VictimSpared(victim.uid, "this is a dry run"))

    def evict(self, effect: do.Evict) -> None:
        log.info("dry run: pod %s would be evicted: %s", effect.pod.key, effect.why)

    def dismantle(self, effect: do.Dismantle) -> None:
        """We have made none."""

    def confirm(self, effect: do.Confirm) -> None:
        places = f"{effect.confirmed.places} places of grant {effect.confirmed.generation}"
        log.info("dry run: %s would have %s", effect.job, places)

    def park(self, effect: do.Park) -> None:
        """The loop has told of it."""

    def forget(self, uid: str) -> None:
        self._plans.pop(uid, None)
        self._preemptions.pop(uid, None)

    def abandon(self, why: str) -> None:
        """There is nothing under way."""

    def tick(self, now: float) -> None:
        """Nothing is put off."""

    def next_time(self) -> float | None:
        return None

    async def run(self) -> None:
        """There is nothing to send; until cancelled, as the writer."""
        await asyncio.Event().wait()

    async def close(self, binds_s: float, rest_s: float) -> None:
        agreed, differed = self.compared["agreed"], self.compared["differed"]
        log.info("dry run: %d placements as ours, %d others", agreed, differed)

    # ---- the recorder's part

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        if isinstance(event, on.PodSeen) and event.pod.node:
            self._preemptions.pop(event.pod.uid, None)
            plan = self._plans.pop(event.pod.uid, None)
            if plan == event.pod.node:
                self.compared["agreed"] += 1
            elif plan is not None:
                self.compared["differed"] += 1
                log.info("differs: pod %s is on %s, not on %s", event.pod.key, event.pod.node, plan)

    def flush(self) -> None:
        """Nothing is held back."""
