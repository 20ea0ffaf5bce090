"""The same as for preemption, with PodGroups that come, change and go, gangs that must be in one
domain or spread, and places that are kept for those that have waited for long."""

import os
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.reservations import classes_of
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.groups import Patience, PodGroup, Source, group_key
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.pods import Gang, Pod
from bayplan.testing import world
from tests.law import test_preemption_laws as preemption

X: Source = "scheduling.x-k8s.io"
RACK = "example.com/rack"
PATIENCE = Patience(timeout_s=60.0, reserve_s=10.0)
topologies = st.fixed_dictionaries(
    {
        "near": st.sampled_from(((), (), (world.HOSTNAME,))),
        "within": st.sampled_from(("", "", RACK)),
        "spread": st.sampled_from(("", "", RACK)),
        "across": st.sampled_from(("", "", RACK)),
    }
)
names = st.sampled_from("gh")
members = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 2),
        "cpu": st.sampled_from((0, 2000)),
        "priority": st.sampled_from((0, 0, 0, 2)),
        "preempts": st.sampled_from((True, False)),
        "controlled": st.booleans(),
    }
)


def key_of(name: str) -> str:
    return group_key(X, "default", name)


class Groups(preemption.Preemption):
    @initialize()
    def no_groups(self) -> None:
        self.groups: dict[str, PodGroup] = {}

    def new_engine(self) -> Engine:
        engine = Engine(patience=PATIENCE)
        for group in getattr(self, "groups", {}).values():
            engine.handle(on.GroupSeen(group), self.now)
        return engine

    @rule(seconds=st.sampled_from((5.0, 60.0)), short=st.booleans(), gpus=st.integers(1, 2))
    def small(self, seconds: float, short: bool, gpus: int) -> None:
        """A pod that says how long it runs."""
        self.number += 1
        run_s = seconds if short else 0.0
        self.see(world.pod(f"s{self.number}", gpus, created_s=self.now, run_s=run_s))

    @rule(name=names, minimum=st.integers(1, 4), topology=topologies, ended=st.integers(0, 1))
    def group(self, name: str, minimum: int, topology: dict[str, Any], ended: int) -> None:
        gang = Gang(key_of(name), minimum, grouped=True, **topology)
        self.groups[name] = PodGroup(X, gang, ended=ended)
        self.tell(on.GroupSeen(self.groups[name]))

    @rule(name=names)
    def ungroup(self, name: str) -> None:
        if self.groups.pop(name, None) is not None:
            self.tell(on.GroupGone(X, key_of(name)))

    @rule(name=names, count=st.integers(1, 4), fields=members)
    def join(self, name: str, count: int, fields: dict[str, Any]) -> None:
        gang = Gang(key_of(name), grouped=True)
        for _ in range(count):
            self.number += 1
            self.see(world.pod(f"m{self.number}", created_s=self.now, gang=gang, **fields))

    @rule(name=names, topology=topologies, short=st.booleans(), preempts=st.booleans())
    def rush(self, name: str, topology: dict[str, Any], short: bool, preempts: bool) -> None:
        """A gang wants more than is left, small pods take that, and then there would be room."""
        self.settle(0.0)
        cluster = self.engine.cluster
        left = int(sum(node.allocatable.get(world.GPU, 0) for node in self.nodes.values()))
        early = [uid for uid, resident in cluster.pods.items() if resident.pod.created_s < self.now]
        self.now += 1.0
        self.group(name, max(left // 2, 1), topology, 0)
        fields = {"gpus": 2 if left > 1 else 1, "controlled": True, "preempts": preempts}
        self.join(name, max(left // 2, 1), fields)
        self.now += 1.0
        for _ in range(left):
            self.small(60.0, short, 1)
        self.settle(0.0)
        for uid in early:
            self.go(uid)
        self.settle(0.0)
        for pod in [pod for pod in self.api.values() if pod.node and not pod.started_s]:
            self.see(replace(pod, started_s=self.now))
        for _ in range(3):
            self.tick(6.0)
        ours = [pod.uid for pod in self.api.values() if pod.node and pod.name.startswith("s")]
        for uid in ours[:1]:
            self.go(uid)
        self.small(5.0, True, 1)
        self.tick(1.0)

    def settle(self, seconds: float) -> None:
        """All binds are answered."""
        self.tick(seconds)
        for uid in list(self.binds):
            placed = self.binds.pop(uid).placement
            self.tell(on.BindDone(uid))
            if uid in self.api:
                held = holding_of(placed.pod.row.devices, placed.held)
                self.see(replace(self.api[uid], node=placed.node, held=held, nominated=""))

    @rule(data=st.data(), rack=st.sampled_from("xy"))
    def rack(self, data: st.DataObject, rack: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        labels = self.nodes[name].labels | {RACK: rack}
        self.nodes[name] = replace(self.nodes[name], labels=labels)
        self.tell(on.NodeSeen(self.nodes[name]))

    @rule(data=st.data())
    def starts(self, data: st.DataObject) -> None:
        """The kubelet says when a pod began."""
        waiting = sorted(pod.uid for pod in self.api.values() if pod.node and not pod.started_s)
        if waiting:
            pod = self.api[data.draw(st.sampled_from(waiting))]
            self.see(replace(pod, started_s=max(self.now, 1.0)))

    # ---- what must be true

    def no_gang_starts_in_part(self, effects: list[do.Effect], before: dict[str, int]) -> None:
        started: dict[str, list[do.Bind]] = {}
        for effect in effects:
            if isinstance(effect, do.Bind) and (gang := effect.placement.pod.gang) is not None:
                started.setdefault(gang.key, []).append(effect)
        for key, binds in started.items():
            first = binds[0].placement.pod.gang
            assert first is not None
            group = self.engine.cluster.groups.get(key)
            if first.grouped:
                assert group is not None, "members were bound without their group"
            ended = group.ended if group else 0
            pods = [bind.placement.pod for bind in binds]
            minimum = self.engine.cluster.groups.minimum
            least = max(minimum(pod.gang) for pod in pods if pod.gang is not None)
            assert before.get(key, 0) + len(pods) + ended >= least
            if group is not None:
                self.are_where_they_must_be(group.gang, binds, before.get(key, 0))

    def are_where_they_must_be(self, gang: Gang, binds: list[do.Bind], before: int) -> None:
        at = [self.nodes[bind.placement.node].labels.get(RACK) for bind in binds]
        if gang.within:
            assert len(set(at)) == 1
            assert at[0] is not None
        if gang.across and not gang.within and not before:
            counts = Counter(at)
            assert None not in counts
            assert max(counts.values()) - min(counts.values()) <= 1

    @invariant()
    def places_are_kept_as_promised(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        awaited = engine.nominations.awaited
        assert set(awaited) <= set(engine.nominations.owners.values())
        seen: list[frozenset[str]] = []
        for owner in awaited:
            uids = engine.nominations.pods_of([owner])
            pods: list[Pod] = [engine.waiting.pods[uid][0].pod for uid in uids]
            classes = classes_of(pods)
            assert not any(classes & each for each in seen), "two gangs have places of a class"
            seen.append(classes)


EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES") or 0) or (
    2_000 if os.environ.get("BAYPLAN_PROVE") else 60
)
TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    phases=tuple(Phase) if os.environ.get("BAYPLAN_SHRINK") != "no" else (Phase.generate,),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
