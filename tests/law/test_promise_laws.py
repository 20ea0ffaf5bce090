"""The same as for preemption, with elastic jobs that are granted more and less: what a job was told
that it has, nobody else gets."""

import os
from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from msgspec.structs import replace

from bayplan.core.engine import gangs
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.preempting import DISPLACED
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.grants import Grant
from bayplan.core.model.pods import Gang, Pod, Worker
from bayplan.testing import world
from tests.law import test_preemption_laws as preemption

JOBS = {f"ElasticJob default/{name}": name for name in "uv"}
jobs = st.sampled_from(sorted(JOBS))


def shape(key: str, gang: bool) -> Pod:
    """Of the workers of the job: two GPUs and a gang of two, or one GPU each for itself."""
    together = Gang(f"default/{JOBS[key]}", 2) if gang else None
    return world.pod("", 2 if gang else 1, uid=key, worker=Worker(key), gang=together)


class Promises(preemption.Preemption):
    @initialize(together=st.booleans())
    def no_grants(self, together: bool) -> None:
        self.shapes = {key: shape(key, together and name == "v") for key, name in JOBS.items()}
        self.granted: dict[str, Grant] = {}  # as the API has them
        self.ended: Counter[str] = Counter()  # earlier jobs of the name
        self.told: dict[str, int] = {}  # by job: places, at the end of the last round
        self.harm = False  # something has happened since that may cost a place

    def new_engine(self) -> Engine:
        engine, self.harm = Engine(), True
        for grant in getattr(self, "granted", {}).values():
            engine.handle(on.GrantSeen(grant), self.now)
        return engine

    # ---- what happens

    @rule(key=jobs, places=st.integers(0, 5), heard=st.booleans())
    def grant(self, key: str, places: int, heard: bool) -> None:
        uid = f"{key} {self.ended[key]}"
        known = self.granted.get(key) or Grant(key, 0, 0, self.shapes[key], uid=uid)
        self.granted[key] = replace(known, generation=known.generation + 1, places=places)
        if heard:
            self.tell(on.GrantSeen(self.granted[key]))

    @rule(key=jobs)
    def hear(self, key: str) -> None:
        """What the API has arrives, or arrives again."""
        if key in self.granted:
            self.tell(on.GrantSeen(self.granted[key]))

    @rule(key=jobs)
    def end(self, key: str) -> None:
        if self.granted.pop(key, None) is not None:
            self.ended[key] += 1
            self.tell(on.GrantGone(key))

    @rule(key=jobs)
    def not_written(self, key: str) -> None:
        self.tell(on.ConfirmFailed(key))

    @rule(
        key=jobs,
        count=st.integers(1, 3),
        priority=st.integers(0, 2),
        job=st.sampled_from(("", "this", "an earlier one")),
    )
    def work(self, key: str, count: int, priority: int, job: str = "this") -> None:
        uid = job and f"{key} {self.ended[key] - (job != 'this')}"
        for _ in range(count):
            self.number += 1
            name = f"w{self.number}"
            like = replace(self.shapes[key], uid=f"uid-{name}", name=name, priority=priority)
            self.see(replace(like, worker=Worker(key, uid)))

    @rule(key=jobs, count=st.integers(2, 3))
    def in_order(self, key: str, count: int) -> None:
        """Granted, confirmed, then made."""
        self.grant(key, count, True)
        self.tick(0.5)
        self.work(key, count, 0)
        self.tick(20.0)

    @rule(gpus=st.integers(1, 3))
    def crowd(self, gpus: int) -> None:
        """More than there is room for, and more important than anybody."""
        for _ in range(4):
            self.number += 1
            self.see(world.pod(f"p{self.number}", gpus, priority=9, created_s=self.now))

    def tell(self, event: on.Event) -> list[do.Effect]:
        harmless = on.PodSeen | on.Tick | on.BindDone | on.BudgetSeen | on.ConfirmFailed
        self.harm = self.harm or not isinstance(event, harmless)
        if isinstance(event, on.PodSeen) and event.pod.terminating:
            self.harm = True
        effects = super().tell(event)
        for effect in effects:
            if isinstance(effect, do.Confirm) and effect.job in self.granted:
                grant = self.granted[effect.job]
                self.granted[effect.job] = replace(grant, confirmed=effect.confirmed)
            displaced = isinstance(effect, do.Refuse) and effect.refusal.message == DISPLACED
            self.harm = self.harm or displaced or isinstance(effect, do.Preempt | do.Evict)
        return effects

    @rule(seconds=st.sampled_from((0.0, 0.5, 2.0, 20.0, 400.0)))
    def tick(self, seconds: float) -> None:
        mixed = self.mixed()
        super().tick(seconds)
        harm, self.harm = self.harm, False
        promises = self.engine.promises
        now = {key: self.has(key) for key in promises.grants}
        for key, grant in promises.grants.items():
            assert min(now[key], grant.places) == promises.told[key].places, "it was told wrongly"
            kept = len(promises.of(key))
            assert kept <= max(grant.places - (now[key] - kept), 0), "more is kept than granted"
            if not harm and key in self.told and key not in mixed:
                assert now[key] >= min(self.told[key], grant.places), "a promise was broken"
        self.told = now
        self.nothing_is_overlooked()
        if seconds >= 20.0 and not self.engine.is_full:
            self.nobody_waits_beside_a_place()

    def nothing_is_overlooked(self) -> None:
        """Grants that were not looked at again would have got no place."""
        promises = self.engine.promises
        with self.engine.asked():
            for grant in promises.grants.values():
                otherwise = promises._promised_otherwise()
                missing = promises._missing(grant, grant.places, otherwise)
                kept = len(promises.of(grant.key))
                if missing > kept and not grant.wrong:
                    worker = replace(grant.pod, uid="one more")
                    verdicts = self.engine.verdicts[grant.pod.scheduler]
                    assert not gangs.place(verdicts, [worker], 1, keep=True).ok, "it was overlooked"

    def belongs(self, pod: Pod, key: str) -> bool:
        grant = self.engine.promises.grants.get(key)
        if grant is None or pod.worker is None:
            return False
        return pod.worker.key == key and pod.worker.uid in ("", grant.uid)

    def mixed(self) -> set[str]:
        """Jobs whose gang also has members that wait and are of an earlier job of the name: they
        start together, so the places are for the gang."""
        pods = [waiter.pod for waiter, _ in self.engine.waiting.pods.values()]
        named = [(pod, pod.worker.key) for pod in pods if pod.gang and pod.worker]
        return {key for pod, key in named if not self.belongs(pod, key)}

    def has(self, key: str) -> int:
        engine = self.engine
        there = sum(self.belongs(placed.pod, key) for placed in engine.cluster.pods.values())
        waiting = (engine.waiting.pods[uid][0].pod for uid in engine.nominations.owners)
        there += sum(self.belongs(pod, key) and pod.uid in engine.nominations for pod in waiting)
        return there + len(engine.promises.of(key))

    def nobody_waits_beside_a_place(self) -> None:
        engine = self.engine
        for waiter, _ in engine.waiting.pods.values():
            pod = waiter.pod
            key = pod.worker.key if pod.worker is not None else ""
            is_alone = pod.gang is None and self.belongs(pod, key)
            for uid in engine.promises.of(key) if is_alone else ():
                verdicts = engine.verdicts[pod.scheduler]
                with engine.cluster.trial():
                    row = engine.cluster.holds.rows[uid]
                    engine.cluster.holds.release(uid)
                    with asking(verdicts, pod) as ask:
                        assert not verdicts.takes(ask, row), f"{pod.name} waits beside its place"
        if not engine.nominations.owners:
            for key in engine.promises.places.keys() - self.mixed():
                self.no_gang_waits_beside_its_places(key)

    def no_gang_waits_beside_its_places(self, key: str) -> None:
        engine = self.engine
        waiting = [waiter.pod for waiter, _ in engine.waiting.pods.values()]
        pods = [pod for pod in waiting if self.belongs(pod, key) and pod.gang is not None]
        if not pods or pods[0].gang is None:
            return
        there = gangs.staying(engine.cluster, pods[0].gang.key, ())
        missing = max(pods[0].gang.minimum - len(there), 1)
        with engine.cluster.trial():
            engine.promises.homes(pods)
            placed = gangs.place(engine.verdicts[pods[0].scheduler], pods, missing)
        assert len(pods) < missing or not placed.ok, f"{key} waits beside its places"

    # ---- what must be true

    @invariant()
    def what_is_kept_is_for_somebody(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        held, owners = set(engine.cluster.holds.rows), engine.nominations.owners
        promised = {uid for uids in engine.promises.places.values() for uid in uids}
        assert held <= set(owners) | promised
        assert set(owners) <= set(engine.waiting.pods)

    def teardown(self) -> None:
        """Without grants nothing is kept in the end, either."""
        if hasattr(self, "engine"):
            for key in list(getattr(self, "granted", {})):
                self.end(key)
        super().teardown()


EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES") or 0) or (
    2_000 if os.environ.get("BAYPLAN_PROVE") else 60
)
TestPromises = Promises.TestCase
TestPromises.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    phases=tuple(Phase) if os.environ.get("BAYPLAN_SHRINK") != "no" else (Phase.generate,),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
