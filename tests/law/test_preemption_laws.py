"""Pods and gangs that go for each other, with deletes, failed binds and restarts in between: nobody
goes in vain, nothing is promised twice, no gang starts in part, and in the end nothing is kept."""

import os
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.budgets import Budget
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import AffinityTerm, Gang, Pod, PodTerms
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.state.demand import PODS
from bayplan.core.state.laws import broken
from bayplan.testing import world
from tests.law.preempting import nobody_goes_in_vain

APART = PodTerms(
    namespace="default",
    anti_affinity=(
        AffinityTerm(Selector((Requirement("app", "In", ("a",)),)), world.HOSTNAME, ("default",)),
    ),
)
gangs = st.none() | st.builds(
    Gang,
    key=st.sampled_from(("default/x", "default/y")),
    minimum=st.integers(1, 3),
    near=st.sampled_from(((), (world.HOSTNAME,))),
)
pods = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 3),
        "cpu": st.sampled_from((0, 2000, 5000)),
        "priority": st.integers(0, 3),
        "labels": st.sampled_from(({}, {"app": "a"}, {"app": "b"})),
        "terms": st.sampled_from((None, None, None, APART)),
        "preempts": st.sampled_from((True, True, True, False)),
        "started_s": st.sampled_from((0.0, 10.0, 20.0)),
        "controlled": st.booleans(),
        "gang": gangs,
    }
)


def node(at: int, gpus: int, published: bool) -> Node:
    facts = world.cards(*[100] * gpus, name=f"n{at}-") if published else {}
    facts["allocatable"] = {**facts.get("allocatable", {}), "cpu": 8000}
    return world.node(f"n{at}", gpus, **facts)


class Deletion(NamedTuple):
    victim: Pod
    preemptor: str  # its uid


class Preemption(RuleBasedStateMachine):
    """What the API has is here; the engine hears of it sooner or later."""

    @initialize(sizes=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4))
    def begin(self, sizes: list[tuple[int, bool]]) -> None:
        self.nodes = {f"n{at}": node(at, *size) for at, size in enumerate(sizes)}
        self.api: dict[str, Pod] = {}  # by uid
        self.binds: dict[str, do.Bind] = {}  # asked for, not answered
        self.deletes: dict[str, Deletion] = {}  # by uid of the victim: asked for, not done
        self.now = 0.0
        self.number = 0
        self.start()

    def start(self) -> None:
        """A new engine lists everything."""
        self.engine = self.new_engine()
        self.binds.clear()
        self.deletes.clear()
        for each in self.nodes.values():
            self.engine.handle(on.NodeSeen(each), self.now)
        for pod in self.api.values():
            self.engine.handle(on.PodSeen(pod), self.now)

    def new_engine(self) -> Engine:
        return Engine()

    # ---- what happens

    @rule(fields=pods, count=st.integers(1, 3))
    def submit(self, fields: dict[str, Any], count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.see(world.pod(f"p{self.number}", created_s=self.now, **fields))

    @rule(seconds=st.sampled_from((0.0, 0.5, 2.0, 20.0, 400.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        before = {key: len(uids) for key, uids in self.engine.cluster.census.gangs.items()}
        effects = self.decide()
        while (at := self.engine.next_time(self.now)) is not None and at <= self.now:
            effects += self.decide()
        self.no_gang_starts_in_part(effects, before)

    @precondition(lambda self: self.binds)
    @rule(data=st.data(), ok=st.booleans())
    def answer(self, data: st.DataObject, ok: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binds)))
        bind = self.binds.pop(uid)
        if not ok or uid not in self.api:
            self.tell(on.BindFailed(uid, "no"))
            return
        placed = bind.placement
        held = holding_of(placed.pod.row.devices, placed.held)
        bound = replace(self.api[uid], node=placed.node, held=held, nominated="")
        self.tell(on.BindDone(uid))
        self.see(bound)

    @precondition(lambda self: self.deletes)
    @rule(data=st.data(), how=st.sampled_from(("begins", "done", "done", "refused")))
    def delete(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.deletes)))
        if uid in self.binds:
            return  # it goes after its bind
        if how == "begins" and uid in self.api:
            life = replace(self.api[uid].lifecycle, preempted=True)
            self.see(replace(self.api[uid], terminating=True, lifecycle=life))
            return
        if how == "refused" and not self.api.get(uid, self.deletes[uid].victim).terminating:
            self.drop(uid, for_s=300.0)
            return
        del self.deletes[uid]
        self.go(uid)

    @precondition(lambda self: self.api)
    @rule(data=st.data(), sent=st.booleans())
    def leave(self, data: st.DataObject, sent: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.api)))
        self.go(uid)
        going = [victim for victim, (_, preemptor) in self.deletes.items() if preemptor == uid]
        for victim in going if not sent and uid not in self.api else ():
            self.drop(victim)

    @precondition(lambda self: self.engine.waiting.pods)
    @rule(data=st.data(), app=st.sampled_from("abc"))
    def relabel(self, data: st.DataObject, app: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.engine.waiting.pods)))
        if uid in self.api:
            self.see(replace(self.api[uid], labels={"app": app}))

    @rule(allowed=st.integers(0, 1), app=st.sampled_from("ab"))
    def budget(self, allowed: int, app: str) -> None:
        selector = Selector((Requirement("app", "In", (app,)),))
        self.tell(on.BudgetSeen(Budget(f"default/{app}", "default", selector, allowed)))

    @rule(data=st.data(), cordon=st.booleans())
    def cordon(self, data: st.DataObject, cordon: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.nodes[name] = replace(self.nodes[name], unschedulable=cordon)
        self.tell(on.NodeSeen(self.nodes[name]))

    @rule()
    def restart(self) -> None:
        self.start()

    # ---- the world

    def decide(self) -> list[do.Effect]:
        """About one pod or gang, so that what comes of it can be judged by itself."""
        return self.tell(on.Tick(limit=1, day_s=self.now))

    def see(self, pod: Pod) -> None:
        self.api[pod.uid] = pod
        self.tell(on.PodSeen(pod))

    def go(self, uid: str) -> None:
        if uid not in self.binds:  # a pod that is being bound goes after its bind
            self.api.pop(uid, None)
            self.tell(on.PodGone(uid))

    def drop(self, uid: str, for_s: float = 0.0) -> None:
        """The deletion is given up."""
        deletion = self.deletes.pop(uid)
        self.tell(on.VictimSpared(uid, "given up", deletion.preemptor, for_s))

    def tell(self, event: on.Event) -> list[do.Effect]:
        effects = self.engine.handle(event, self.now)
        for effect in effects:
            match effect:
                case do.Bind(placed):
                    self.binds[placed.pod.uid] = effect
                case do.Refuse(pod, _, nominated) if nominated is not None:
                    if pod.uid in self.api:
                        self.api[pod.uid] = replace(self.api[pod.uid], nominated=nominated)
                case do.Preempt():
                    nobody_goes_in_vain(self.engine, effect)
                    for victim in effect.victims:
                        self.deletes[victim.uid] = Deletion(victim, effect.pod.uid)
                case do.Evict(pod):
                    assert pod.controlled
                case do.Park():
                    raise AssertionError(effect.story)
        return effects

    # ---- what must be true

    def no_gang_starts_in_part(self, effects: list[do.Effect], before: dict[str, int]) -> None:
        started: dict[str, list[Pod]] = {}
        for effect in effects:
            if isinstance(effect, do.Bind) and (gang := effect.placement.pod.gang) is not None:
                started.setdefault(gang.key, []).append(effect.placement.pod)
        for key, members in started.items():
            minimum = self.engine.cluster.groups.minimum
            least = max(minimum(pod.gang) for pod in members if pod.gang is not None)
            assert before.get(key, 0) + len(members) >= least

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "engine"):
            assert broken(self.engine.cluster) == []

    @invariant()
    def what_is_kept_is_for_somebody(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        assert set(engine.cluster.holds.rows) <= set(engine.nominations.owners)
        assert set(engine.nominations.owners) <= set(engine.waiting.pods)
        owners = set(engine.nominations.owners.values())
        for uid, whom in engine.nominations.doomed.items():
            assert uid in engine.cluster.pods
            assert set(whom) <= owners

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if not hasattr(self, "engine"):
            return
        cluster = self.engine.cluster
        with cluster.trial():
            for uid in list(cluster.holds.rows):
                cluster.holds.release(uid)
            real = cluster.free[: cluster.height, PODS:]  # scores count more than is requested
            assert (real[cluster.alive[: cluster.height]] >= 0).all()

    @invariant()
    def nobody_sleeps_beside_room(self) -> None:
        """Who was refused and not woken since fits nowhere, or would be in somebody's way."""
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        for waiter, group in engine.waiting.pods.values():
            pod = waiter.pod
            if group.refusal is None or pod.gang is not None or pod.uid in engine.nominations:
                continue
            with engine.asked(), asking(engine.verdicts[pod.scheduler], pod) as ask:
                row, _, _ = engine.verdicts[pod.scheduler].best(ask, keep=False)
                fits = row >= 0 and not engine.preempting.promised([pod])
            assert not fits, f"{pod.name} sleeps beside room on {engine.cluster.name(row)}"

    def teardown(self) -> None:
        """When all deletes and binds are through and who is awaited has ended, nothing is kept, and
        who was promised a place has one."""
        if not hasattr(self, "engine"):
            return
        for _ in range(60):
            for uid in list(self.binds):
                bind = self.binds.pop(uid)
                self.tell(on.BindDone(uid))
                self.see(
                    replace(
                        self.api[uid],
                        node=bind.placement.node,
                        nominated="",
                        held=holding_of(bind.placement.pod.row.devices, bind.placement.held),
                    )
                )
            going = [pod.uid for pod in self.api.values() if pod.terminating]
            for awaited in self.engine.nominations.awaited.values():
                going += [uid for uid in awaited if uid in self.api]
            for uid in [*self.deletes, *going]:
                self.deletes.pop(uid, None)
                self.go(uid)
            self.tick(20.0)
            if not self.binds and not self.deletes and not self.engine.cluster.holds.rows:
                break
        assert not self.engine.cluster.holds.rows
        assert not self.engine.nominations.doomed


EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES") or 0) or (
    3_000 if os.environ.get("BAYPLAN_PROVE") else 50
)
TestPreemption = Preemption.TestCase
TestPreemption.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    phases=tuple(Phase) if os.environ.get("BAYPLAN_SHRINK") != "no" else (Phase.generate,),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
