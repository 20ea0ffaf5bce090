"""Any arrivals, deaths, failures and relists: the laws hold after every step."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import asking, fits
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.nodes import Image, Node
from bayplan.core.model.pods import AffinityTerm, HostPort, Pod, PodTerms, Spread
from bayplan.core.model.selectors import (
    EVERYTHING,
    NodeTerm,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from bayplan.core.model.volumes import ONE_POD, Claim, StorageClass, Volume
from bayplan.core.state import cluster, labels
from bayplan.core.state.laws import broken, picture
from bayplan.testing import world
from tests.conftest import check_kept, differences

ZONE = "zone"
REAL_ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
SPACES = ("red", "blue")
NAMES = tuple(f"n{i}" for i in range(10))
TAINTS = (Taint("t", "", "NoSchedule"), Taint("p", "", "PreferNoSchedule"))

pod_labels = st.fixed_dictionaries(
    {}, optional={"app": st.sampled_from("ab"), "tier": st.sampled_from("xy")}
)
selectors = st.sampled_from(
    (
        None,
        EVERYTHING,
        Selector((Requirement("app", "In", ("a",)),)),
        Selector((Requirement("app", "In", ("a", "b")),)),
        Selector((Requirement("app", "Exists"), Requirement("tier", "NotIn", ("x",)))),
        Selector((Requirement("tier", "DoesNotExist"),)),
    )
)
affinity = st.builds(
    AffinityTerm,
    selector=selectors,
    topology_key=st.sampled_from((ZONE, world.HOSTNAME, "rack")),
    namespaces=st.sampled_from(((), ("red",), SPACES)),
    namespace_selector=st.sampled_from(
        (None, EVERYTHING, Selector((Requirement("env", "In", ("prod",)),)))
    ),
)
spread = st.builds(
    Spread,
    max_skew=st.integers(1, 2),
    topology_key=st.sampled_from((ZONE, world.HOSTNAME)),
    hard=st.booleans(),
    selector=selectors,
    min_domains=st.integers(1, 3),
    honor_affinity=st.booleans(),
    honor_taints=st.booleans(),
)
own_terms = st.none() | st.builds(
    PodTerms,
    namespace=st.just("red"),
    spread=st.lists(spread, max_size=2).map(tuple),
    affinity=st.lists(affinity, max_size=1).map(tuple),
    anti_affinity=st.lists(affinity, max_size=1).map(tuple),
    preferred=st.lists(st.tuples(st.integers(-10, 10), affinity), max_size=2).map(tuple),
)
nodes = st.builds(
    lambda name, gpus, zone, rack, taints, cordon, disk, uid, images: Node(
        name=name,
        uid=f"{name}-{uid}",
        labels={world.HOSTNAME: name, **zone, **rack, "disk": disk},
        allocatable={"pods": 6, "cpu": 8000, "memory": 8 << 30, **gpus},
        taints=taints,
        unschedulable=cordon,
        images=images,
    ),
    name=st.sampled_from(NAMES),
    gpus=st.sampled_from(({}, {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 4}, {"odd/one": 3})),
    zone=st.sampled_from(({}, {ZONE: "z0"}, {ZONE: "z1", REAL_ZONE: "z1"})),
    rack=st.sampled_from(({}, {"rack": "r0"}, {"rack": "r1"})),
    taints=st.sampled_from(((), TAINTS[:1], TAINTS[1:], TAINTS)),
    cordon=st.sampled_from((False, False, False, True)),
    disk=st.sampled_from(("ssd", "hdd", "7")),
    uid=st.sampled_from((0, 0, 0, 1)),
    images=st.sampled_from(((), (Image(("app:1",), 500 << 20),))),
)
rows = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 3),
        "cpu": st.sampled_from((0, 1000, 4000)),
        "requests": st.sampled_from(({}, {}, {"odd/one": 1}, {"never/seen": 1})),
        "tolerations": st.sampled_from(
            ((), (Toleration("t", "Exists"),), (Toleration("", "Exists"),))
        ),
        "node_selector": st.sampled_from(((), (("disk", "ssd"),))),
        "required": st.sampled_from(
            (
                None,
                None,
                (NodeTerm((Requirement("disk", "Gt", ("5",)),)),),
                (NodeTerm(name_in=("n1",), named=("n1",)),),
            )
        ),
        "ports": st.sampled_from(((), (), (HostPort("TCP", 80, "0.0.0.0"),))),
        "images": st.sampled_from(((), ("app:1",))),
        "priority": st.integers(0, 2),
        "namespace": st.sampled_from(SPACES),
        "claims": st.sampled_from(((),) * 6 + (("red/a",), ("red/b", "red/a"))),
        "resource_claims": st.sampled_from((False,) * 11 + (True,)),
    }
)
in_zone = (NodeTerm((Requirement(ZONE, "In", ("z0",)),)),)
claims = st.builds(
    Claim,
    namespace=st.just("red"),
    name=st.sampled_from("ab"),
    uid=st.sampled_from("12"),
    volume=st.sampled_from(("", "", "v0", "v1")),
    completed=st.sampled_from((True, True, False)),
    storage_class=st.sampled_from(("waits", "waits", "local", "")),
    access_modes=st.sampled_from(((), (ONE_POD,))),
    selected_node=st.sampled_from((None, None, None, "n0", "n1")),
    deleting=st.sampled_from((False,) * 7 + (True,)),
    lost=st.sampled_from((False,) * 7 + (True,)),
)
volumes = st.builds(
    Volume,
    name=st.sampled_from(("v0", "v1")),
    terms=st.sampled_from((None, in_zone)),
    zones=st.sampled_from(((), ((REAL_ZONE, ("z1", "z2")),))),
    storage_class=st.sampled_from(("waits", "local")),
    unclaimed=st.booleans(),
)
classes = st.builds(
    StorageClass,
    name=st.sampled_from(("waits", "local")),
    waits=st.sampled_from((True, True, False)),
    provisioner=st.sampled_from(("csi.example", "csi.example", "")),
    topologies=st.sampled_from(((), in_zone)),
)
storage_events = st.one_of(
    st.builds(on.ClaimSeen, claims),
    st.builds(on.ClaimSeen, claims),
    st.builds(on.VolumeSeen, volumes),
    st.builds(on.StorageClassSeen, classes),
    st.builds(on.ClaimGone, st.sampled_from(("red/a", "red/b"))),
    st.builds(on.VolumeGone, st.sampled_from(("v0", "v1"))),
    st.builds(on.StorageClassGone, st.sampled_from(("waits", "local"))),
    st.builds(on.StorageClassesHidden, st.booleans()),
    st.builds(on.DeviceClassSeen, st.sampled_from("xy"), st.sampled_from(("", GPU, "odd/one"))),
    st.builds(on.DeviceClassGone, st.sampled_from("xy")),
)
refusals = st.builds(
    on.KubeletRefused,
    st.sampled_from(NAMES),
    st.sampled_from((("pods",), (GPU,), ("cpu", GPU), ("never/seen",))),
)


class Laws(RuleBasedStateMachine):
    """Drives one engine with whatever may happen, and a second with the same events."""

    @initialize(
        waste=st.sampled_from((0, 1024)),
        known=st.sampled_from(((), (StorageClass("waits", True, "csi.example"),))),
    )
    def start(self, waste: int, known: tuple[StorageClass, ...]) -> None:
        labels.WASTE = cluster.WASTE = waste  # type: ignore
        self.engine, self.twin = Engine(), Engine()
        self.now = 0.0
        self.made = 0
        self.known: dict[str, Pod] = {}  # by uid, as the API has them
        self.binding: dict[str, str] = {}  # by uid: the node
        for storage_class in known:
            self.tell(on.StorageClassSeen(storage_class))
            for name in "ab":
                self.tell(on.ClaimSeen(Claim("red", name, "1", storage_class=storage_class.name)))

    def tell(self, event: on.Event) -> None:
        effects = self.engine.handle(event, self.now)
        again = self.twin.handle(event, self.now)
        assert effects == again
        for effect in effects:
            assert not isinstance(effect, do.Park), effect
            if isinstance(effect, do.Bind):
                self.binding[effect.placement.pod.uid] = effect.placement.node

    @rule(node=nodes)
    def see_node(self, node: Node) -> None:
        self.tell(on.NodeSeen(node))

    @rule(count=st.integers(6, 10), zones=st.integers(1, 3), gpus=st.integers(1, 4))
    def see_many_nodes(self, count: int, zones: int, gpus: int) -> None:
        """Plain nodes, so that pods find room and fill it."""
        for i, name in enumerate(NAMES[:count]):
            more = {"zone": f"z{i % zones}", "rack": f"r{i % 2}", "disk": "ssd"}
            amounts = {"pods": 4, "cpu": 8000}
            self.tell(on.NodeSeen(world.node(name, gpus, labels=more, allocatable=amounts)))

    @precondition(lambda self: self.engine.cluster.rows)
    @rule(data=st.data(), disk=st.sampled_from(("ssd", "hdd", "7")), zone=st.sampled_from("01"))
    def change_node(self, data: st.DataObject, disk: str, zone: str) -> None:
        """One node changes a little, and may now please a pod that it refused."""
        here = self.engine.cluster
        node = here.nodes[here.rows[data.draw(st.sampled_from(sorted(here.rows)))]]
        assert node is not None
        labels = {**node.labels, "disk": disk, ZONE: f"z{zone}"}
        self.tell(on.NodeSeen(replace(node, labels=labels, taints=(), unschedulable=False)))

    @rule(event=storage_events)
    def see_storage(self, event: on.Event) -> None:
        self.tell(event)

    @rule(event=refusals)
    def refuse_on_node(self, event: on.Event) -> None:
        self.tell(event)

    def wait_on_n0(self, **facts: Any) -> None:
        """A pod that only n0 would do for waits, though n0 has room."""
        self.made += 1
        here = (NodeTerm(name_in=("n0",), named=("n0",)),)
        pod = world.pod(f"p{self.made}", required=here, priority=3, **facts)
        self.known[pod.uid] = pod
        self.tell(on.PodSeen(pod))
        self.tell(on.Tick())

    @rule(volume_last=st.booleans())
    def see_claim_late(self, volume_last: bool) -> None:
        self.tell(on.NodeSeen(world.node("n0")))
        self.tell(on.ClaimGone("red/a"))
        self.tell(on.VolumeGone("v0"))
        self.wait_on_n0(claims=("red/a",))
        claim = on.ClaimSeen(Claim("red", "a", "1", "v0", completed=True))
        news: list[on.Event] = [on.VolumeSeen(Volume("v0")), claim]
        for event in reversed(news) if volume_last else news:
            self.now += 10
            self.tell(on.Tick())
            self.tell(event)

    @rule(resource=st.sampled_from(("pods", "cpu")))
    def trust_again_late(self, resource: str) -> None:
        self.tell(on.NodeSeen(world.node("n0")))
        self.tell(on.KubeletRefused("n0", (resource,)))
        self.wait_on_n0(cpu=100)
        self.now += 10
        self.tell(on.Tick())

    @rule(name=st.sampled_from(NAMES))
    def lose_node(self, name: str) -> None:
        self.tell(on.NodeGone(name))

    @rule(name=st.sampled_from(SPACES), env=st.sampled_from(("prod", "dev")))
    def see_namespace(self, name: str, env: str) -> None:
        self.tell(on.NamespaceSeen(name, {"env": env}))

    @rule(name=st.sampled_from(SPACES))
    def lose_namespace(self, name: str) -> None:
        self.tell(on.NamespaceGone(name))

    @rule(row=rows, labels=pod_labels, terms=own_terms, node=st.sampled_from(("", "", "", *NAMES)))
    def see_pod(
        self, row: dict[str, Any], labels: dict[str, str], terms: PodTerms | None, node: str
    ) -> None:
        self.made += 1
        pod = world.pod(f"p{self.made}", labels={**labels, "index": str(self.made)}, **row)
        if terms is not None:
            pod = replace(pod, terms=replace(terms, namespace=pod.namespace))
        self.known[pod.uid] = replace(pod, node=node)
        self.tell(on.PodSeen(self.known[pod.uid]))

    @rule(pods=st.integers(2, 8), gpus=st.integers(0, 4), cpu=st.sampled_from((0, 4000, 8000)))
    def see_many_pods(self, pods: int, gpus: int, cpu: int) -> None:
        for _ in range(pods):
            self.made += 1
            pod = world.pod(f"p{self.made}", gpus, cpu, labels={"app": "a", "i": str(self.made)})
            self.known[pod.uid] = pod
            self.tell(on.PodSeen(pod))
        self.tell(on.Tick())

    @precondition(lambda self: self.known)
    @rule(data=st.data(), labels=pod_labels, terminating=st.booleans())
    def change_pod(self, data: st.DataObject, labels: dict[str, str], terminating: bool) -> None:
        pod = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        self.known[pod.uid] = replace(pod, labels=labels, terminating=terminating)
        self.tell(on.PodSeen(self.known[pod.uid]))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lose_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.known)))
        del self.known[uid]
        self.binding.pop(uid, None)
        self.tell(on.PodGone(uid))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), node=st.sampled_from(NAMES))
    def see_unreadable(self, data: st.DataObject, node: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.known)))
        self.binding.pop(uid, None)
        self.tell(on.PodUnreadable(uid, node))

    @rule(seconds=st.sampled_from((0.0, 0.5, 1.0, 10.0, 400.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(on.Tick(limit=8))

    @precondition(lambda self: self.binding)
    @rule(data=st.data(), outcome=st.sampled_from(("done", "seen", "failed", "elsewhere")))
    def answer(self, data: st.DataObject, outcome: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binding)))
        node = self.binding.pop(uid)
        if outcome == "failed":
            self.tell(on.BindFailed(uid, "conflict"))
            return
        if outcome == "elsewhere":
            node = data.draw(st.sampled_from(NAMES))
        if outcome == "done":
            self.tell(on.BindDone(uid))
        if uid in self.known:
            self.known[uid] = replace(self.known[uid], node=node)
            self.tell(on.PodSeen(self.known[uid]))

    @rule()
    def relist(self) -> None:
        """What the API says again changes nothing."""
        before = picture(self.engine.cluster)
        for pod in self.known.values():
            if pod.uid not in self.engine.unreadable:
                self.tell(on.PodSeen(pod))
        for node in [n for n in self.engine.cluster.nodes if n is not None]:
            self.tell(on.NodeSeen(node))
        storage = self.engine.cluster.storage
        for volume in storage.volumes.values():
            self.tell(on.VolumeSeen(volume))
        for claim in storage.claims.values():
            self.tell(on.ClaimSeen(claim))
        assert "; ".join(differences(before, picture(self.engine.cluster))) == ""

    @rule(
        data=st.data(),
        claim=claims,
        volume=volumes,
        node=nodes,
        row=rows,
        labels=pod_labels,
        terms=own_terms,
    )
    def try_and_drop(
        self,
        data: st.DataObject,
        claim: Claim,
        volume: Volume,
        node: Node,
        row: dict[str, Any],
        labels: dict[str, str],
        terms: PodTerms | None,
    ) -> None:
        """Nested trials of everything; tests/conftest.py checks the drop."""
        here = self.engine.cluster
        pod = world.pod("trial", labels=labels, **row)
        if terms is not None:
            pod = replace(pod, terms=replace(terms, namespace=pod.namespace))
        verdicts = self.engine.verdicts["bayplan"]
        with here.trial():
            (here.update_node if node.name in here.rows else here.add_node)(node)
            here.storage.set_claim(claim.key, claim)
            here.place(pod, node.name)
            here.distrusted.refused(node.name, GPU, self.now)
            with here.trial() as inner:
                if data.draw(st.booleans()) and here.pods:
                    uid = data.draw(st.sampled_from(sorted(here.pods)))
                    here.relabel(uid, replace(here.pods[uid].pod, labels=labels))
                if data.draw(st.booleans()) and here.pods:
                    here.remove(data.draw(st.sampled_from(sorted(here.pods))))
                with asking(verdicts, pod) as ask:
                    verdicts.best(ask)
                here.storage.set_volume(volume.name, volume)
                here.device_classes.set("x", data.draw(st.sampled_from((GPU, "odd/one"))))
                if data.draw(st.booleans()):
                    here.remove_node(node.name)
                if data.draw(st.booleans()):
                    here.set_namespace("red", {"env": "prod"})
                if data.draw(st.booleans()):
                    inner.keep()

    @rule(row=rows, labels=pod_labels, terms=own_terms)
    def ask(self, row: dict[str, Any], labels: dict[str, str], terms: PodTerms | None) -> None:
        """A question leaves nothing behind, and freeing capacity never removes a fit."""
        here = self.engine.cluster
        pod = world.pod("asked", labels=labels, **row)
        if terms is not None:
            pod = replace(pod, terms=replace(terms, namespace=pod.namespace))
        before = picture(here)
        answer = fits(self.engine.verdicts["bayplan"], pod)
        assert "; ".join(differences(before, picture(here))) == ""
        if terms is None and here.pods:
            with here.trial():
                here.remove(sorted(here.pods)[0])
                freed = fits(self.engine.verdicts["bayplan"], pod)
            assert set(answer.feasible) <= set(freed.feasible)

    @invariant()
    def the_laws_hold(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert broken(self.engine.cluster) == []
        check_kept(self.engine.verdicts["bayplan"])

    @invariant()
    def who_sleeps_could_not_be_helped(self) -> None:
        """No event that could help a refused pod has happened without waking it."""
        if not hasattr(self, "engine"):
            return
        for group in self.engine.waiting.groups.values():
            if group.refusal is None:
                continue
            waiter = next(iter(group.members.values()))
            verdicts = self.engine.verdicts["bayplan"]
            with asking(verdicts, waiter.pod) as ask:
                row, _, _ = verdicts.best(ask)
            assert row < 0, (waiter.pod, group.refusal)

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        orphans = [uid for pods in engine.cluster.orphans.values() for uid in pods]
        places = [*engine.cluster.pods, *engine.waiting.pods, *engine.held, *orphans]
        assert len(places) == len(set(places))
        assert set(engine.assumed) <= set(engine.cluster.pods) | set(orphans)


EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES") or 0) or (
    3_000 if os.environ.get("BAYPLAN_PROVE") else 150
)
TestLaws = Laws.TestCase
TestLaws.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    phases=tuple(Phase) if os.environ.get("BAYPLAN_SHRINK") != "no" else (Phase.generate,),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
