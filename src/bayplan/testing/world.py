"""A small world for scenarios: a cluster in one line, an arrival in one line, an outcome in one.

    world = World(a=8, b=8)              # two nodes, 8 GPUs each
    world.submit("train", gpus=4)
    assert world.running() == {"train": "a"}

Time stands still until `wait`; the time of day is the same. Binds succeed at once unless `binds` is
"hold" or "fail".
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Profile, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import CORDON, Device
from bayplan.core.model.groups import Patience
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.inventories import pools_of
from bayplan.core.model.nodes import Node, Pool
from bayplan.core.model.partitions import Estate, Partition, Spot
from bayplan.core.model.pods import DeviceAsk, Lifecycle, Pod, PodTerms, RowKey
from bayplan.core.model.selectors import Taint
from bayplan.core.model.vendors import FULL_COMPUTE, IPU, KNOWN, Vendors

GIB = 1 << 30
HOSTNAME = "kubernetes.io/hostname"
GPU, GPU_MEMORY = "nvidia.com/gpu", "bayplan.dev/gpu-memory-mib"
GPU_COMPUTE = "bayplan.dev/gpu-compute-percent"
NEURON, NEURON_CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
IPUS, VIPU = "graphcore.ai/ipu", ("vipu-ctrl", "vctl1")
VENDORS = Vendors((*KNOWN, IPU))


def node(name: str, gpus: int = 8, **facts: Any) -> Node:
    """A node with GPUs, 64 cores, 512 GiB and room for 110 pods; `facts` replace fields."""
    labels = {HOSTNAME: name, **facts.pop("labels", {})}
    allocatable = {"pods": 110, "cpu": 64_000, "memory": 512 * GIB, GPU: gpus}
    allocatable |= facts.pop("allocatable", {})
    return Node(name=name, uid=f"uid-{name}", labels=labels, allocatable=allocatable, **facts)


def cards(*sizes_mib: int, name: str = "", **facts: Any) -> dict[str, Any]:
    """Facts of a node that publishes GPUs with so much memory."""
    devices = tuple(
        Device(f"GPU-{name}{i}", i, memory_mib=size) for i, size in enumerate(sizes_mib)
    )
    amounts = {
        GPU: len(sizes_mib),
        GPU_MEMORY: sum(sizes_mib),
        GPU_COMPUTE: FULL_COMPUTE * len(sizes_mib),
    }
    pool = Pool("nvidia", facts.pop("devices", devices), **facts)
    return {"pools": (pool,), "allocatable": amounts}


def neurons(machine: str, devices: int = 0, cores: int = 0, cordon: str = "") -> dict[str, Any]:
    """Facts of an AWS machine whose device plugin counts so many; `cordon` names those to leave."""
    amounts = {name: n for name, n in ((NEURON, devices), (NEURON_CORE, cores)) if n}
    labels = {"node.kubernetes.io/instance-type": machine}
    return {
        "pools": pools_of({CORDON: cordon}, VENDORS, labels, amounts),
        "allocatable": amounts,
        "labels": labels,
    }


def ipus(name: str = "vipu:8090", count: int = 16, domain: int = 64, **facts: Any) -> Estate:
    """A controller's IPUs, four in a machine; nodes with the label VIPU reach it."""
    devices = tuple(Device(f"ag{i // 4}.{i % 4}", i) for i in range(count))
    spots = tuple(Spot(i // domain, i % domain) for i in range(count))
    return replace(Estate(name, "ipu", VIPU, devices, spots, "bp-", name), **facts)


def asks(container: str = "main", phase: Any = "main", **amounts: int) -> tuple[DeviceAsk, ...]:
    """What a container asks for: `gpus`, `mib` of one card's memory, `percent` of its compute;
    `neurons` or their `cores`; a partition of `ipus`."""
    names = {"gpus": GPU, "mib": GPU_MEMORY, "percent": GPU_COMPUTE}
    names |= {"neurons": NEURON, "cores": NEURON_CORE, "ipus": IPUS}
    found = []
    for name, amount in amounts.items():
        device_class, resource = VENDORS.resources[names[name]]
        ask = DeviceAsk(container, resource.name, device_class.name, resource.kind, amount)
        together = device_class.model == "contiguous"
        found.append(replace(ask, phase=phase, consecutive=together))
    return tuple(found)


def pod(name: str, gpus: int = 0, cpu: int = 0, memory: int = 0, **facts: Any) -> Pod:
    """A waiting pod of the scheduler `bayplan`; `facts` are fields of Pod, of its RowKey or of its
    Lifecycle."""
    given = {**({GPU: gpus} if gpus else {}), **facts.pop("requests", {})}
    amounts = {"cpu": cpu, "memory": memory, **given}
    if gpus and "devices" not in facts:
        facts["devices"] = asks(gpus=gpus)
    for ask in facts.get("devices", ()):
        if ask.resource not in given and ask.kind != "partition":
            amounts[ask.resource] = amounts.get(ask.resource, 0) + ask.amount
    requests = tuple(sorted((n, amount) for n, amount in amounts.items() if amount))
    row = {key: facts.pop(key) for key in list(facts) if key in RowKey.__struct_fields__}
    life = {key: facts.pop(key) for key in list(facts) if key in Lifecycle.__struct_fields__}
    scored = (("cpu", cpu or 100), ("memory", memory or 200 << 20), *requests)
    key = RowKey(
        requests=requests,
        scored=tuple(sorted(dict(reversed(scored)).items())),
        scored_placed=(cpu or 100, memory or 200 << 20),
        **row,
    )
    defaults: dict[str, Any] = {"namespace": "default", "labels": {}, "scheduler": "bayplan"}
    defaults |= {"uid": f"uid-{name}", "lifecycle": Lifecycle(**life)}
    return Pod(name=name, row=key, **(defaults | facts))


class World:
    """A cluster, the engine, and a clock that stands still."""

    def __init__(
        self,
        nodes: Mapping[str, int] | None = None,
        *,
        profiles: list[Profile] | None = None,
        config: ProfileConfig | None = None,
        binds: Literal["succeed", "hold", "fail"] = "succeed",
        patience: Patience = Patience(),  # noqa: B008
        **more: int,
    ) -> None:
        chosen = [Profile(config)] if config is not None else profiles
        self.engine = Engine(chosen, patience=patience)
        self.now = 0.0
        self.binds = binds
        self.bound: dict[str, str] = {}  # pod name: node
        self.devices: dict[str, list[str]] = {}  # pod name: ids that it was given
        self.effects: list[do.Effect] = []  # everything the engine asked for
        for name, gpus in {**(nodes or {}), **more}.items():
            self.node(name, gpus)

    # ---- what happens

    def node(self, name: str, gpus: int = 8, **facts: Any) -> None:
        """A node appears, or changes."""
        self.tell(on.NodeSeen(node(name, gpus, **facts)))

    def estate(self, estate: Estate, *partitions: Partition) -> None:
        """A controller tells what it has."""
        self.tell(on.EstateSeen(estate, partitions))

    def submit(self, name: str, gpus: int = 0, *, pods: int = 0, **facts: Any) -> None:
        """A pod arrives; with `pods`, that many, called name-0, name-1 …, all at once."""
        names = [name] if not pods else [f"{name}-{i}" for i in range(pods)]
        for each in names:
            self.engine.handle(on.PodSeen(pod(each, gpus, **facts)), self.now)
        self.tick()

    def see(self, seen: Pod) -> None:
        self.tell(on.PodSeen(seen))

    def finish(self, name: str) -> None:
        self.bound.pop(name, None)
        self.tell(on.PodGone(f"uid-{name}"))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    def tell(self, event: on.Event) -> None:
        self._follow(self.engine.handle(event, self.now))
        self.tick()

    def tick(self) -> None:
        while True:
            effects = self.engine.handle(on.Tick(day_s=self.now), self.now)
            self._follow(effects)
            if (
                not any(isinstance(effect, do.Bind) for effect in effects)
                or self.binds != "succeed"
            ):
                return

    def answer(self, name: str, ok: bool = True) -> None:
        """The outcome of a bind that was held back."""
        uid = f"uid-{name}"
        if ok:
            self.tell(on.BindDone(uid))
        else:
            self.bound.pop(name, None)
            self.tell(on.BindFailed(uid, "conflict"))

    def _follow(self, effects: list[do.Effect]) -> None:
        self.effects += effects
        for effect in effects:
            if not isinstance(effect, do.Bind):
                continue
            bound = effect.placement.pod
            if self.binds == "fail":
                self.engine.handle(on.BindFailed(bound.uid, "the API said no"), self.now)
                continue
            self.bound[bound.name] = effect.placement.node
            given = [device.id for held in effect.placement.held for device in held.devices]
            self.devices[bound.name] = list(dict.fromkeys(given))
            if self.binds == "succeed":
                self.engine.handle(on.BindDone(bound.uid), self.now)
                held = holding_of(bound.row.devices, effect.placement.held)
                seen = replace(bound, node=effect.placement.node, held=held)
                self.engine.handle(on.PodSeen(seen), self.now)

    # ---- what came of it

    def running(self) -> dict[str, str]:
        """Pod name: node."""
        return dict(self.bound)

    def waiting(self) -> dict[str, str]:
        """Pod name: why it waits; empty while it has not been tried."""
        found = {}
        for waiter, group in self.engine.waiting.pods.values():
            found[waiter.pod.name] = group.refusal.message if group.refusal else ""
        return found


def tainted(key: str, effect: str = "NoSchedule", value: str = "") -> tuple[Taint, ...]:
    return (Taint(key, value, effect),)


def terms(**fields: Any) -> PodTerms:
    return PodTerms(namespace=fields.pop("namespace", "default"), **fields)
