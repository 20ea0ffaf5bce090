"""Random cases about preemption: nodes, pods on them, budgets, and a pod that fits nowhere.

Two thirds are small and have few different values, so that equal priorities, equal start times and
equal nodes are common. The others are those of `cases.py`, with priorities, start times and
budgets, on nodes that are made full. Nothing here knows the right answer.
"""

import random
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction

from tests.oracle import cases
from tests.oracle.cases import FOO, GPU, HOST, UNSCHEDULABLE, ZONE
from tests.oracle.preemption_world import AMOUNTS, Builder, Json

PORTS = (80, 443, 8080)

# Foci: each puts something in the way of the new pod


def _scarce(resource: str) -> Callable[[Builder], None]:
    def tighten(builder: Builder) -> None:
        builder.scarce.add(resource)
        if resource not in AMOUNTS:
            return
        rng, amounts, unit = builder.rng, AMOUNTS[resource], "m" if resource == "cpu" else ""
        asked = builder.pod["spec"]["containers"][0]["resources"]["requests"]
        asked[resource] = f"{rng.choice(amounts) * rng.choice((1, 2, 4, 4))}{unit}"
        for pod in builder.pods:
            if builder.chance(0.5):
                taken = pod["spec"]["containers"][0]["resources"]["requests"]
                taken[resource] = f"{rng.choice(amounts)}{unit}"

    return tighten


def _ports(builder: Builder) -> None:
    rng = builder.rng
    wanted = rng.sample(PORTS, rng.choice((1, 1, 2)))
    ports = [{"containerPort": 80, "hostPort": port} for port in wanted]
    builder.pod["spec"]["containers"][0]["ports"] = ports
    for pod in builder.pods:
        if builder.chance(0.5):
            port: Json = {"containerPort": 80, "hostPort": rng.choice(wanted)}
            if builder.chance(0.3):
                port["hostIP"] = "10.0.0.1"
            pod["spec"]["containers"][0]["ports"] = [port]


def _term(builder: Builder, target: Json) -> Json:
    labels = target["metadata"].get("labels", {})
    selector = {"matchLabels": dict(list(labels.items())[:1])}
    term: Json = {"topologyKey": builder.rng.choice((HOST, HOST, ZONE)), "labelSelector": selector}
    if builder.chance(0.5):
        term["namespaceSelector"] = {}
    return term


def _affinity(kind: str) -> Callable[[Builder], None]:
    def require(builder: Builder) -> None:
        if builder.pods:
            term = _term(builder, builder.rng.choice(builder.pods))
            required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            builder.pod["spec"].setdefault("affinity", {})[kind] = required

    return require


def _existing(builder: Builder) -> None:
    for pod in builder.pods:
        if builder.chance(0.3):
            required = {
                "requiredDuringSchedulingIgnoredDuringExecution": [_term(builder, builder.pod)]
            }
            pod["spec"]["affinity"] = {"podAntiAffinity": required}


def _spread(builder: Builder) -> None:
    rng, labels = builder.rng, builder.pod["metadata"].get("labels", {})
    for node in rng.sample(builder.nodes, (len(builder.nodes) + 1) // 2):
        for _ in range(rng.choice((1, 2, 3))):
            builder.bind(node["metadata"]["name"], like=builder.pod)
    builder.pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": rng.choice((1, 1, 2)),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": dict(list(labels.items())[:1])},
            **({"minDomains": rng.choice((2, 3, 9))} if builder.chance(0.4) else {}),
        }
        for key in rng.sample((HOST, ZONE), rng.choice((1, 1, 2)))
    ]


def _closed(builder: Builder) -> None:
    """Nodes that no victim opens."""
    for node in builder.rng.sample(builder.nodes, max(1, len(builder.nodes) // 3)):
        match builder.rng.choice(("taint", "cordon", "label")):
            case "taint":
                effect = builder.rng.choice(("NoSchedule", "NoExecute"))
                node["spec"]["taints"] = [{"key": "dedicated", "effect": effect}]
            case "cordon":
                node["spec"]["unschedulable"] = True
                node["spec"]["taints"] = [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]
            case _:
                node["metadata"]["labels"]["disk"] = "hdd"
                builder.pod["spec"]["nodeSelector"] = {"disk": "ssd"}


FOCI: dict[str, tuple[float, Callable[[Builder], None]]] = {
    "ports": (1.5, _ports),
    "existing-anti-affinity": (1.5, _existing),
    "spread": (2.0, _spread),
    "pod-affinity": (0.7, _affinity("podAffinity")),
    "pod-anti-affinity": (1.5, _affinity("podAntiAffinity")),
    "closed": (1.5, _closed),
    "count": (1.5, _scarce("pods")),
    "cpu": (3.0, _scarce("cpu")),
    "memory": (2.0, _scarce("memory")),
    GPU: (2.5, _scarce(GPU)),
    FOO: (1.0, _scarce(FOO)),
}


# The whole


def _allocate(builder: Builder) -> None:
    """Gives each node what its pods take, and of what is scarce too little for one more."""
    rng, need = builder.rng, cases.requests(builder.pod)
    alike = {r: rng.choice((0, rng.randrange(asked))) for r, asked in need.items() if asked}
    for node in builder.nodes:
        here = [p for p in builder.pods if p["spec"]["nodeName"] == node["metadata"]["name"]]
        short = builder.scarce if builder.chance(0.97) else set()
        has: dict[str, int] = {"pods": len(here) if "pods" in short else len(here) + 20}
        for resource in AMOUNTS:
            asked = need.get(resource, 0)
            used = sum(cases.requests(pod).get(resource, 0) for pod in here)
            free = asked + rng.choice((0, 1, 5000))
            if resource in short and asked:
                free = rng.choice((0, 0, asked - 1, rng.randrange(asked)))
                if builder.repeated and builder.chance(0.9):
                    free = alike[resource]
                if used and builder.chance(0.95):
                    free = max(free, asked - used)  # alone it would fit
            has[resource] = used + free
        node["status"]["allocatable"] = {
            r: f"{amount}m" if r == "cpu" else str(amount) for r, amount in has.items()
        }


def _small(rng: random.Random) -> Json:
    builder = Builder(rng)
    builder.nodes = [builder.node(f"n{i}") for i in range(rng.choice((1, 2, 3, 3, 4, 5, 6, 8)))]
    most = rng.choice((2, 3, 5, 8))
    for node in builder.nodes:
        for _ in range(rng.randint(int(builder.chance(0.85)), most)):
            like = builder.pod if builder.chance(0.3) else None
            builder.bind(node["metadata"]["name"], like)
    if builder.chance(0.4):  # the same again on every node, so that nodes are equal
        _repeat(builder)
    else:
        builder.age()
    names = list(FOCI)
    chosen = set(rng.choices(names, [FOCI[n][0] for n in names], k=rng.choice((1, 2, 2, 3))))
    if not chosen & {"count", "cpu", "memory", GPU, FOO} or builder.chance(0.1):
        chosen.add("cpu" if builder.chance(0.7) else "count")
    for name in names:
        if name in chosen:
            FOCI[name][1](builder)
    _allocate(builder)
    return builder.finish()


def _repeat(builder: Builder) -> None:
    """Puts the first node's pods on every node, and ages them mostly alike."""
    first = [pod for pod in builder.pods if pod["spec"]["nodeName"] == "n0"]
    builder.pods = []
    twins = []
    for node in builder.nodes:
        for pod in first:
            copy = builder.bind(node["metadata"]["name"], like=pod)
            copy["spec"]["containers"] = deepcopy(pod["spec"]["containers"])
            twins.append(pod)
    builder.age()
    builder.repeated = True
    same_start = builder.rng.choice((0.95, 0.3))
    for pod, twin in zip(builder.pods, twins, strict=True):
        for part, name, alike in (("spec", "priority", 0.98), ("status", "startTime", same_start)):
            if name not in twin[part]:
                twin[part] |= {k: v for k, v in pod[part].items() if k == name}
            if builder.chance(alike):
                pod[part].pop(name, None)
                pod[part] |= {k: v for k, v in twin[part].items() if k == name}


def _filled(rng: random.Random) -> Json:
    """A case of `cases.py`, with nodes that are full."""
    found = cases.case(rng)
    builder = Builder(rng)
    builder.nodes, builder.pod, builder.pods = found["nodes"], found["pod"], found["pods"]
    names = {node["metadata"]["name"] for node in builder.nodes}
    gone = ("Succeeded", "Failed")
    builder.pods = [pod for pod in builder.pods if pod["spec"]["nodeName"] in names]
    builder.age()
    for node in builder.nodes:
        here = [p for p in builder.pods if p["spec"]["nodeName"] == node["metadata"]["name"]]
        here = [pod for pod in here if pod["status"]["phase"] not in gone]
        has, need = node["status"]["allocatable"], cases.requests(builder.pod)
        resource = rng.choice(("pods", *(r for r in ("cpu", "memory") if need.get(r))))
        if resource == "pods":
            has["pods"] = str(len(here))
        else:
            used = sum(cases.requests(pod).get(resource, 0) for pod in here)
            enough = used + need[resource] - rng.choice((1, need[resource]))
            has[resource] = cases.plain(Fraction(enough, 1000 if resource == "cpu" else 1))
    return {**builder.finish(), "namespaces": found["namespaces"]}


def case(rng: random.Random) -> Json:
    """One random case."""
    return _filled(rng) if rng.random() < 0.33 else _small(rng)


def made(seed: int, index: int) -> Json:
    """The case of this name."""
    return case(random.Random(f"{seed}/preemption/{index}"))
