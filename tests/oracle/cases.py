"""Random scheduling cases: a few nodes, the pods bound to them, and one pod that wants a place.

A case is built lenient first, so that every node would do, and then one to three features of it
(its *focus*) are made tight; a node is then mostly refused for one reason only, and a wrong answer
about that reason cannot hide behind another. One case in ten is wild: anything may be tight.
Amounts come last: what a node has is worked out from what is asked of it, so that exact fits and
misses by one unit are common. `coverage.py` measures all this; nothing here knows the right answer.

Objects are what an API server could have stored, save that quantities keep the spellings that it
accepts, as files do, and that `attachable-volumes-*` is asked for by pods.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

Json = dict[str, Any]

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
RACK = "rack"
TOPOLOGY = (HOST, ZONE, ZONE, RACK)
NODE_LABELS: dict[str, tuple[str, ...]] = {
    ZONE: ("z1", "z2", "z3"),
    RACK: ("r1", "r2"),
    "disk": ("ssd", "hdd"),
    "gen": ("1", "2", "3", "10", "03", "x"),  # for Gt and Lt: one is no number
}
POD_LABELS: dict[str, tuple[str, ...]] = {
    "app": ("a", "b", "c"),
    "tier": ("x", "y"),
    "rev": ("1", "2"),
}
NAMESPACES = ("default", "red", "blue", "green")
LOST = "lost"  # a namespace that pods are in and that has no object
GHOST = "ghost"  # a node that pods name and that is not in the list
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
IPS = (None, "", "0.0.0.0", "127.0.0.1", "10.0.0.1")
PROTOCOLS = (None, "TCP", "UDP", "SCTP")
GPU, FOO, HUGE = "nvidia.com/gpu", "example.com/foo", "hugepages-2Mi"
NATIVE, ATTACHABLE = "kubernetes.io/batch", "attachable-volumes-csi-x"
EPHEMERAL = "ephemeral-storage"
MI = 2**20

AMOUNTS: dict[str, tuple[str | int, ...]] = {
    "cpu": (
        *("0", "1m", "100m", "0.1", "250m", ".5", "1", 1, "1.5", "2000m", "1e0", "2e-1", "5e-4"),
        *("100u", "500u", "1500u", "300000n", "1n", "0.3m"),
    ),
    "memory": (
        *("0", "1", "1k", "1Ki", "128974848", 128974848, "129e6", "129M", "123Mi", "1.5Gi", "1Gi"),
        *("1e3", "1E3", "512Mi", "0.5Gi", "100m", "1500m", "12e6", "0.1", "2G", "+64Mi"),
    ),
    EPHEMERAL: ("0", "1Gi", "500Mi", "1G", "10e6", "1.5Gi", "200m", 1024),
    GPU: ("0", "1", 1, "2", "4", "8", "1e0", "3000m"),
    FOO: ("0", "1", "2", "5", "1k", "1e1"),
    HUGE: ("0", "2Mi", "4Mi", "128Mi", "2097152", "0.125Gi", "2048Ki"),
    NATIVE: ("0", "1", "3", "2.5", "1k"),
    ATTACHABLE: ("0", "1", "2"),
}
VAST: dict[str, str] = {"memory": "0.001E", EPHEMERAL: "0.001E"}  # near the most that is counted
SHARE: dict[str, float] = {  # how likely a container asks for it
    "cpu": 0.6,
    "memory": 0.6,
    EPHEMERAL: 0.12,
    GPU: 0.15,
    FOO: 0.07,
    HUGE: 0.06,
    NATIVE: 0.03,
    ATTACHABLE: 0.03,
}
ROOMY: dict[str, tuple[int, ...]] = {  # in the unit that the scheduler counts: cpu in milli
    "cpu": (4000, 16000, 64000, 1500),
    "memory": (2**32, 2**36, 10**10),
    EPHEMERAL: (2**37, 10**11),
    GPU: (8, 4, 16),
    FOO: (10, 1000),
    HUGE: (512 * MI, 2**30),
    NATIVE: (10, 5000),
    ATTACHABLE: (39, 25),
}
UNCOMMON = (GPU, FOO, HUGE, NATIVE, ATTACHABLE)

SCALES: dict[str, Fraction] = {
    "": Fraction(1),
    **{s: Fraction(1, 10**e) for s, e in (("m", 3), ("u", 6), ("n", 9))},
    **{s: Fraction(10**e) for s, e in (("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15))},
    **{f"{s}i": Fraction(1024**e) for s, e in (("K", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5))},
    **{s: Fraction(10**e) for s, e in (("E", 18), ("e3", 3), ("E3", 3), ("e6", 6), ("e0", 0))},
    **{"Ei": Fraction(1024**6), "e1": Fraction(10), "e-3": Fraction(1, 1000)},
}
QUANTITY = re.compile(r"^([+-]?)(\d*)\.?(\d*)([eE][+-]?\d+|[a-zA-Z]*)$")


@dataclass
class World:
    """A case while it is being built."""

    rng: random.Random
    scored: bool
    nodes: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    namespaces: list[Json] = field(default_factory=list)
    pod: Json = field(default_factory=dict)
    scarce: set[str] = field(default_factory=set)  # resources (and "pods") that some nodes lack
    vast: int = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def some_nodes(self) -> list[Json]:
        """At least one node, and seldom all."""
        count = self.rng.randint(1, max(1, (2 * len(self.nodes) + 2) // 3))
        return self.rng.sample(self.nodes, min(count, len(self.nodes)))

    def namespace(self) -> str:
        """A namespace for a pod: mostly one that exists."""
        names = [str(n["metadata"]["name"]) for n in self.namespaces]
        return LOST if self.chance(0.06) else self.rng.choice(names)


# Quantities


@lru_cache(maxsize=100_000)
def amount(quantity: str | int) -> Fraction:
    """The exact value of a quantity, in whole units."""
    found = QUANTITY.match(str(quantity))
    assert found, quantity
    sign, whole, decimals, suffix = found.groups()
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))
    if suffix in SCALES:
        value *= SCALES[suffix]
    else:
        value *= Fraction(10) ** int(suffix[1:])
    return -value if sign == "-" else value


@lru_cache(maxsize=100_000)
def _spellings(value: Fraction) -> tuple[str, ...]:
    ways = [str(value)] if value.denominator == 1 else []
    for suffix, scale in SCALES.items():
        thousandths = value / scale * 1000
        if thousandths.denominator != 1 or not 0 <= thousandths < 10**17:
            continue
        if value == 0 and suffix in ("Pi", "Ei"):  # in Go, adding to it gives 1 too many
            continue
        whole, rest = divmod(int(thousandths), 1000)
        ways.append(f"{whole}.{rest:03}".rstrip("0").rstrip(".") + suffix)
    if not ways:  # vast and not whole
        whole, rest = divmod(int(value * 10**9), 10**9)
        ways = [f"{whole}.{rest:09}"]
    return tuple(ways)


def spell(rng: random.Random, value: Fraction) -> str | int:
    """One of the ways to write this value exactly."""
    if value.denominator == 1 and value < 2**53 and rng.random() < 0.1:
        return int(value)
    return rng.choice(_spellings(value))


def plain(value: Fraction) -> str:
    """A spelling that Go keeps as an int64.

    Where it keeps a big decimal, `PodRequests` adds the overhead to the pod-level request in place,
    and so once more on every call: kube-scheduler's answer then depends on how often it asked.
    """
    for suffix, unit in (("", 1), ("m", 10**3), ("u", 10**6), ("n", 10**9)):
        if (value * unit).denominator == 1:
            return f"{value * unit}{suffix}"
    raise ValueError(f"{value} is finer than Kubernetes counts")


def counted(resource: str, value: Fraction) -> int:
    """What the scheduler makes of it: milli for cpu, whole units for the rest, rounded up."""
    return ceil(value * 1000) if resource == "cpu" else ceil(value)


def _add(total: dict[str, Fraction], more: dict[str, Fraction]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, Fraction(0)) + value


def _raise(total: dict[str, Fraction], other: dict[str, Fraction]) -> None:
    for resource, value in other.items():
        total[resource] = max(total.get(resource, value), value)


def _read(quantities: Json | None) -> dict[str, Fraction]:
    return {resource: amount(q) for resource, q in (quantities or {}).items()}


def _effective(pod: Json, asked: Json | None, status: Json) -> dict[str, Fraction]:
    """A container's (or pod's) request while a resize may be under way."""
    if "resources" not in status:
        return _read(asked)
    conditions = pod.get("status", {}).get("conditions", [])
    pending = [c for c in conditions if c["type"] == "PodResizePending"]
    infeasible = bool(pending) and pending[0].get("reason") == "Infeasible"
    total = {} if infeasible else _read(asked)
    _raise(total, _read(status["resources"].get("requests")))
    _raise(total, _read(status.get("allocatedResources")))
    return total


def requests(pod: Json) -> dict[str, int]:
    """What the pod takes from its node; only good enough to aim at boundaries with."""
    spec, status = pod["spec"], pod.get("status", {})
    statuses = {
        s["name"]: s
        for kind in ("containerStatuses", "initContainerStatuses")
        for s in status.get(kind, [])
    }

    def asked(container: Json, resizable: bool) -> dict[str, Fraction]:
        seen = statuses.get(container["name"], {}) if resizable else {}
        return _effective(pod, container.get("resources", {}).get("requests"), seen)

    total: dict[str, Fraction] = {}
    for container in spec["containers"]:
        _add(total, asked(container, True))
    side: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            use = asked(container, True)
            _add(total, use)
            _add(side, use)
            _raise(peak, side)
        else:
            use = asked(container, False)
            _add(use, side)
            _raise(peak, use)
    _raise(total, peak)
    whole = spec.get("resources", {}).get("requests") or {}
    effective = _effective(pod, whole, status)
    total.update({resource: effective.get(resource, Fraction(0)) for resource in whole})
    _add(total, _read(spec.get("overhead")))
    return {resource: counted(resource, value) for resource, value in total.items()}


# Labels and selectors


def matches(selector: Json | None, labels: dict[str, str]) -> bool:
    """Whether a label selector selects these labels; nil selects nothing."""
    if selector is None:
        return False
    pairs = (selector.get("matchLabels") or {}).items()
    if any(labels.get(key) != value for key, value in pairs):
        return False
    for expression in selector.get("matchExpressions") or []:
        value = labels.get(expression["key"])
        values = expression.get("values") or []
        held = {
            "In": value is not None and value in values,
            "NotIn": value is None or value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not held[expression["operator"]]:
            return False
    return True


def _pod_labels(rng: random.Random) -> dict[str, str]:
    likely = {"app": 0.9, "tier": 0.5, "rev": 0.4}
    if rng.random() < 0.07:
        return {}
    return {k: rng.choice(v) for k, v in POD_LABELS.items() if rng.random() < likely[k]}


def _expression(rng: random.Random, labels: dict[str, str], vocabulary: dict[str, Any]) -> Json:
    """A requirement that these labels meet."""
    keys = list(vocabulary)
    present = [key for key in keys if key in labels]
    absent = [key for key in keys if key not in labels] + ["nokey"]
    forms = ["NotIn", "DoesNotExist"] + (["In", "In", "Exists", "Exists"] if present else [])
    match rng.choice(forms):
        case "In":
            key = rng.choice(present)
            values = sorted({labels[key], rng.choice(vocabulary[key])})
            return {"key": key, "operator": "In", "values": values}
        case "Exists":
            return {"key": rng.choice(present), "operator": "Exists"}
        case "DoesNotExist":
            return {"key": rng.choice(absent), "operator": "DoesNotExist"}
        case _:
            key = rng.choice(keys)
            values = [v for v in vocabulary[key] if v != labels.get(key)]
            values = values if values and rng.random() < 0.8 else ["none"]
            return {"key": key, "operator": "NotIn", "values": values}


def _selector(rng: random.Random, labels: dict[str, str]) -> Json:
    """A selector that selects these labels; most selectors say something about `app`."""
    roll = rng.random()
    if roll < 0.08:
        return {}
    if "app" in labels and roll < 0.5:
        selector: Json = {"matchLabels": {"app": labels["app"]}}
        if rng.random() < 0.15:
            selector["matchExpressions"] = [_expression(rng, labels, POD_LABELS)]
        return selector
    if roll < 0.54 and labels:
        return {"matchLabels": dict(labels)}
    count = rng.choice((1, 1, 2))
    return {"matchExpressions": [_expression(rng, labels, POD_LABELS) for _ in range(count)]}


def _any_selector(rng: random.Random) -> Json | None:
    return None if rng.random() < 0.08 else _selector(rng, _pod_labels(rng))


def _merge_keys(rng: random.Random, holder: Json, labels: dict[str, str], mismatch: bool) -> None:
    """Sets matchLabelKeys (or mismatchLabelKeys), and merges them as the API server does."""
    selector = holder.get("labelSelector")
    if selector is None:
        return
    used = {*selector.get("matchLabels", {})}
    used |= {e["key"] for e in selector.get("matchExpressions", [])}
    keys = [key for key in ("rev", "tier", "nokey") if key not in used]
    held = [key for key in keys if key in labels]
    if not keys:
        return
    key = rng.choice(held if held and rng.random() < 0.8 else keys)
    holder["mismatchLabelKeys" if mismatch else "matchLabelKeys"] = [key]
    stored_before_merging = "maxSkew" in holder and rng.random() < 0.4
    if key in labels and not stored_before_merging:
        merged = {"key": key, "operator": "NotIn" if mismatch else "In", "values": [labels[key]]}
        selector.setdefault("matchExpressions", []).append(merged)


# Objects


def _node(world: World, name: str) -> Json:
    rng = world.rng
    labels = {key: rng.choice(values) for key, values in NODE_LABELS.items() if rng.random() < 0.93}
    labels[HOST] = name if rng.random() < 0.97 else "n0"
    if world.chance(0.02):
        labels[rng.choice((ZONE, RACK, "disk"))] = ""
    if world.chance(0.02):
        labels = {}
    node: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    if labels or world.chance(0.5):
        node["metadata"]["labels"] = labels
    node["spec"] = {"unschedulable": False} if world.chance(0.05) else {}
    node["status"] = {}
    if world.chance(0.7 if world.scored else 0.25):
        node["status"]["images"] = [_stored_image(rng) for _ in range(rng.randint(0, 4))]
    taints = []
    if world.chance(0.35 if world.scored else 0.08):
        taints = [_taint(rng, "PreferNoSchedule") for _ in range(rng.randint(1, 3))]
    if taints:
        node["spec"]["taints"] = _unique_taints(taints)
    return node


IMAGES = ("app", "tool:v1", "registry.local:5000/app", "ghcr.io/x/tool:v2", "busybox:latest")
DIGEST = "app@sha256:" + "ab" * 32


def _image(rng: random.Random) -> str:
    return rng.choice((*IMAGES, DIGEST, "app:latest", "registry.local:5000/app:latest"))


def _stored_image(rng: random.Random) -> Json:
    """An image as a kubelet reports it: by digest and by tag."""
    name = rng.choice((*IMAGES, "app:latest", "registry.local:5000/app:latest"))
    names = [name] if rng.random() < 0.5 else [name, DIGEST]
    if rng.random() < 0.5 and ":" not in name.rsplit("/", 1)[-1]:
        names.append(name + ":latest")
    if rng.random() < 0.04:
        names = []
    sizes = (0, 1, 23 * MI - 1, 23 * MI, 23 * MI + 1, 100 * MI, 500 * MI, 1000 * MI, 4000 * MI)
    size = rng.choice(sizes) if rng.random() < 0.6 else rng.randint(0, 2000 * MI)
    return {"names": names, "sizeBytes": size}


def _taint(rng: random.Random, effect: str | None = None) -> Json:
    key, values = rng.choice(
        (
            ("dedicated", ("gpu", "infra", None)),
            ("dedicated", ("gpu", "infra", "")),
            ("cost", ("5", "7")),
            ("node.kubernetes.io/not-ready", (None,)),
        )
    )
    taint = {"key": key, "effect": effect or rng.choice(EFFECTS[:2] + EFFECTS)}
    value = rng.choice(values)
    return taint if value is None else {**taint, "value": value}


def _unique_taints(taints: list[Json]) -> list[Json]:
    return list({(t["key"], t["effect"]): t for t in taints}.values())


def _toleration(rng: random.Random, taint: Json) -> Json:
    """One that tolerates the taint, or nearly."""
    toleration: Json = {"key": taint["key"], "effect": taint["effect"]}
    value = taint.get("value", "")
    match rng.choice(("Exists", "Exists", "Equal", "Equal", "", "Gt", "Lt", "any")):
        case "Exists":
            toleration["operator"] = "Exists"
        case "any":
            toleration = {"operator": "Exists", "effect": taint["effect"]}
        case "Gt" | "Lt" as operator:
            toleration |= {"operator": operator, "value": "4" if operator == "Gt" else "9"}
        case operator:
            toleration["value"] = value if rng.random() < 0.75 else "other"
            if operator:
                toleration["operator"] = operator
    roll = rng.random()
    if roll < 0.25:
        del toleration["effect"]
    elif roll < 0.35:
        toleration["effect"] = rng.choice(EFFECTS)
    if toleration.get("effect") == "NoExecute" and rng.random() < 0.3:
        toleration["tolerationSeconds"] = 300
    return toleration


def _ask(world: World, resources: Sequence[str]) -> Json:
    """A container's resources; what may not be overcommitted has limits too."""
    rng = world.rng
    asked = {r: rng.choice(AMOUNTS[r]) for r in resources}
    for resource, quantity in VAST.items():
        if resource in asked and not world.scored and world.vast < 4 and world.chance(0.01):
            asked[resource] = quantity
            world.vast += 1
    if HUGE in asked and not {"cpu", "memory"} & asked.keys():
        asked["memory"] = "1Gi"
    result: Json = {}
    if asked or world.chance(0.5):
        result["requests"] = asked
    limits = {r: q for r, q in asked.items() if r in (GPU, FOO, HUGE)}
    if limits:
        result["limits"] = limits
    return result


def _container(world: World, name: str) -> Json:
    asked = [resource for resource, share in SHARE.items() if world.chance(share)]
    container: Json = {"name": name, "image": _image(world.rng)}
    if world.chance(0.85):
        container["resources"] = _ask(world, asked)
    if world.chance(0.04):
        container["ports"] = [{"containerPort": 80, "protocol": "TCP"}]  # none of the host's
    return container


def _port(rng: random.Random, near: Json | None = None) -> Json:
    """A host port, often one that a given port collides with or just misses."""
    near = near or {}
    same = near and rng.random() < 0.8
    port: Json = {"containerPort": 80, "hostPort": near["hostPort"] if same else 8080}
    if not same:
        port["hostPort"] = rng.choice((80, 443, 8080))
    protocol = near.get("protocol") if same and rng.random() < 0.8 else rng.choice(PROTOCOLS)
    ip = near.get("hostIP") if same and rng.random() < 0.5 else rng.choice(IPS)
    if protocol is not None:
        port["protocol"] = protocol
    if ip is not None:
        port["hostIP"] = ip
    return port


def _place_port(world: World, pod: Json, port: Json) -> None:
    """On a container, a sidecar, or (where it does not count) a plain init container."""
    spec = pod["spec"]
    if world.chance(0.35) and "initContainers" not in spec:
        spec["initContainers"] = [{"name": "i0", "image": "tool:v1"}]
        if world.chance(0.5):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    holder = spec["containers"] if world.chance(0.5) else spec.get("initContainers")
    world.rng.choice(holder or spec["containers"]).setdefault("ports", []).append(port)


def _pod(world: World, name: str, bound_to: str | None) -> Json:
    rng = world.rng
    metadata: Json = {"name": name, "namespace": world.namespace(), "uid": f"uid-{name}"}
    labels = _pod_labels(rng)
    if labels or world.chance(0.5):
        metadata["labels"] = labels
    spec: Json = {"containers": [_container(world, f"c{i}") for i in range(rng.randint(1, 3))]}
    if bound_to is None:
        spec["containers"] = spec["containers"][: rng.choice((1, 1, 2, 3))]
    if world.chance(0.18 if bound_to else 0.3):
        spec["initContainers"] = [_container(world, f"i{i}") for i in range(rng.randint(1, 3))]
        for container in spec["initContainers"]:
            if world.chance(0.5):
                container["restartPolicy"] = "Always"
    if world.chance(0.08):
        spec["overhead"] = {
            r: rng.choice(AMOUNTS[r]) for r in ("cpu", "memory", EPHEMERAL) if world.chance(0.6)
        }
    if world.chance(0.09 if bound_to else 0.13):
        _pod_level(world, spec)
    volumes: list[Json] = [{"name": "scratch", "emptyDir": {}}] if world.chance(0.1) else []
    if world.chance(0.3 if world.scored and not bound_to else 0.06):
        volumes.append({"name": "model", "image": {"reference": _image(rng)}})
    if volumes:
        spec["volumes"] = volumes
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    if bound_to is not None:
        spec["nodeName"] = bound_to
        _status(world, pod)
    else:
        pod["status"] = {"phase": "Pending"}
    return pod


def _pod_level(world: World, spec: Json) -> None:
    """Resources of the whole pod: at least the sum of its containers'."""
    rng = world.rng
    sums: dict[str, Fraction] = {}
    for container in spec["containers"] + spec.get("initContainers", []):
        _add(sums, _read(container.get("resources", {}).get("requests")))
    asked: dict[str, str | int] = {}
    for resource, likely in (("cpu", 0.7), ("memory", 0.7), (HUGE, 0.4)):
        if world.chance(likely):
            extra = amount(rng.choice(AMOUNTS[resource])) if world.chance(0.6) else Fraction(0)
            total = sums.get(resource, Fraction(0)) + extra
            asked[resource] = plain(total) if spec.get("overhead") else spell(rng, total)
    if HUGE in asked and len(asked) == 1:
        asked["memory"] = plain(sums.get("memory", Fraction(0)) + 1024)
    spec["resources"] = {"requests": asked} if asked else {"limits": {"cpu": "64"}}
    if HUGE in asked:
        spec["resources"]["limits"] = {HUGE: asked[HUGE]}


def _status(world: World, pod: Json) -> None:
    """The status of a bound pod: its phase, and what a resize in place leaves there."""
    rng, spec = world.rng, pod["spec"]
    status: Json = {"phase": rng.choice(("Running", "Running", "Running", "Pending"))}
    pod["status"] = status
    if world.chance(0.06):
        status["phase"] = rng.choice(("Succeeded", "Failed"))
    if world.chance(0.08):
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        pod["metadata"]["deletionGracePeriodSeconds"] = 30
    if not world.chance(0.6 if "resources" in spec or "initContainers" in spec else 0.15):
        return
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if world.chance(0.5):
        reason = rng.choice(("Infeasible", "Infeasible", "Deferred"))
        conditions.append({"type": "PodResizePending", "status": "True", "reason": reason})
    status["conditions"] = conditions
    for kind, containers in (
        ("containerStatuses", spec["containers"]),
        ("initContainerStatuses", spec.get("initContainers", [])),
    ):
        seen = [_resized(world, c["name"]) for c in containers if world.chance(0.8)]
        if seen:
            status[kind] = seen
    if "resources" in spec:
        status |= {k: v for k, v in _resized(world, "").items() if k != "name"}


def _resized(world: World, name: str) -> Json:
    """What a kubelet says that a container (or pod) has: all of it, a part, or nothing."""
    rng, seen = world.rng, {"name": name}
    result: Json = dict(seen)
    resources = [r for r in ("cpu", "memory") if world.chance(0.7)]
    if world.chance(0.7):
        result["resources"] = {}
        if world.chance(0.75):
            result["resources"]["requests"] = {r: rng.choice(AMOUNTS[r]) for r in resources}
    if world.chance(0.75):
        result["allocatedResources"] = {r: rng.choice(AMOUNTS[r]) for r in resources}
    return result


def _namespace(world: World, name: str) -> Json:
    labels = {"kubernetes.io/metadata.name": name}
    for key, values in (("team", ("r", "b")), ("env", ("prod", "dev"))):
        if world.chance(0.6):
            labels[key] = world.rng.choice(values)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


# Terms


def _reach(world: World, owner: Json, target: Json) -> Json:
    """Which namespaces a pod's affinity term is about, so that it reaches the target pod."""
    rng = world.rng
    here, there = owner["metadata"]["namespace"], target["metadata"]["namespace"]
    everywhere: list[Json] = [{"namespaceSelector": {}}] * 2
    ways: list[Json] = [{"namespaces": [there]}, *everywhere]
    if here == there:
        ways += [{}] * 4 + [{"namespaces": []}]
    elif world.chance(0.15):
        return {}
    ways.append({"namespaces": sorted({there, rng.choice(NAMESPACES)})})
    for namespace in world.namespaces:
        labels = namespace["metadata"]["labels"]
        if namespace["metadata"]["name"] == there:
            key = rng.choice(list(labels))
            ways.append({"namespaceSelector": {"matchLabels": {key: labels[key]}}})
            exists = {"key": key, "operator": "Exists"}
            ways.append({"namespaceSelector": {"matchExpressions": [exists]}})
            ways.append(
                {
                    "namespaces": [rng.choice(NAMESPACES)],
                    "namespaceSelector": {"matchLabels": {key: labels[key]}},
                }
            )
    # these two also select a namespace that has no labels, or no object
    absent = {"key": "team", "operator": "DoesNotExist"}
    other = {"key": "team", "operator": "NotIn", "values": [rng.choice(("r", "b"))]}
    ways.append({"namespaceSelector": {"matchExpressions": [rng.choice((absent, other))]}})
    return deepcopy(rng.choice(ways))


def _term(world: World, owner: Json, target: Json | None) -> Json:
    """An affinity term of the owner about pods like the target, or about some pods or none."""
    rng = world.rng
    labels = owner["metadata"].get("labels", {})
    term: Json = {"topologyKey": rng.choice(TOPOLOGY)}
    if target is not None:
        if world.chance(0.97):
            term["labelSelector"] = _selector(rng, target["metadata"].get("labels", {}))
        term |= _reach(world, owner, target)
    else:
        selector = _any_selector(rng)
        if selector is not None or world.chance(0.3):
            term["labelSelector"] = selector
        term |= _reach(world, owner, rng.choice([*world.pods, world.pod]))
    if world.chance(0.12):
        _merge_keys(rng, term, labels, mismatch=False)
    if world.chance(0.08):
        _merge_keys(rng, term, labels, mismatch=True)
    return term


def _add_term(pod: Json, kind: str, term: Json, weight: int | None = None) -> None:
    """Adds a pod (anti-)affinity term, required unless it has a weight."""
    group = pod["spec"].setdefault("affinity", {}).setdefault(kind, {})
    if weight is None:
        group.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    else:
        weighted = {"weight": weight, "podAffinityTerm": term}
        group.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(weighted)


def _node_term(world: World, node: Json, *, hard: bool) -> Json:
    """A node selector term that this node meets, or nearly."""
    rng = world.rng
    labels = node["metadata"].get("labels", {})
    term: Json = {}
    if world.chance(0.9):
        count = rng.choice((1, 2, 2))
        term["matchExpressions"] = [_node_expression(rng, labels, hard) for _ in range(count)]
    if world.chance(0.2):
        # NotIn only: In narrows the nodes in PreFilter, which is a focus of its own
        name = rng.choice(world.nodes)["metadata"]["name"]
        term["matchFields"] = [{"key": "metadata.name", "operator": "NotIn", "values": [name]}]
    return term


def _node_expression(rng: random.Random, labels: dict[str, str], hard: bool) -> Json:
    if rng.random() < 0.36 and "gen" in labels:
        operator = rng.choice(("Gt", "Lt"))
        values = ["0", "1", "2", "3", "10", "03"]
        if hard and rng.random() < 0.15:  # a preferred term with these fails the whole cycle
            values = ["x", "9999999999999999999"]
        return {"key": "gen", "operator": operator, "values": [rng.choice(values)]}
    return _expression(rng, labels, NODE_LABELS)


# Foci: each makes one feature tight


def _tight_taints(world: World) -> None:
    rng = world.rng
    used: list[Json] = []
    for node in world.some_nodes():
        taints = node["spec"].get("taints", []) + [_taint(rng) for _ in range(rng.randint(1, 2))]
        node["spec"]["taints"] = _unique_taints(taints)
        used += taints
    tolerations = [_toleration(rng, t) for t in used if world.chance(0.4)]
    if world.chance(0.05):
        tolerations.append({"operator": "Exists"})
    world.pod["spec"].setdefault("tolerations", []).extend(tolerations)


def _tight_unschedulable(world: World) -> None:
    taint = {"key": UNSCHEDULABLE, "effect": "NoSchedule"}
    for node in world.some_nodes():
        node["spec"]["unschedulable"] = True
        if world.chance(0.2):
            node["spec"].setdefault("taints", []).append(dict(taint))
    if world.chance(0.3):
        toleration = _toleration(world.rng, taint)
        world.pod["spec"].setdefault("tolerations", []).append(toleration)


def _tight_name(world: World) -> None:
    name = world.rng.choice(world.nodes)["metadata"]["name"]
    world.pod["spec"]["nodeName"] = name if world.chance(0.5) else GHOST


def _required_terms(world: World) -> list[Json]:
    affinity = world.pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms: list[Json] = required.setdefault("nodeSelectorTerms", [])
    return terms


def _tight_affinity(world: World) -> None:
    rng = world.rng
    node = rng.choice(world.nodes)
    labels = node["metadata"].get("labels", {})
    both = rng.random()
    if both < 0.4:
        count = rng.choice((0, 1, 1, 1, 2))
        keys = rng.sample(sorted(labels), min(count, len(labels)))
        world.pod["spec"]["nodeSelector"] = {k: labels[k] for k in keys}
        if world.chance(0.06):
            world.pod["spec"]["nodeSelector"]["nokey"] = ""
    if both > 0.3:
        terms = _required_terms(world)
        for _ in range(rng.choice((1, 2, 2, 3))):
            near = node if world.chance(0.7) else rng.choice(world.nodes)
            terms.append({} if world.chance(0.14) else _node_term(world, near, hard=True))


def _named(name: str) -> Json:
    return {"key": "metadata.name", "operator": "In", "values": [name]}


def _tight_names(world: World) -> None:
    rng = world.rng
    terms = _required_terms(world)
    terms.clear()
    for _ in range(rng.choice((1, 1, 2, 3))):
        node = rng.choice(world.nodes)
        term: Json = {"matchFields": [_named(node["metadata"]["name"])]}
        if world.chance(0.1):
            term["matchFields"] = [_named(GHOST)]
        if world.chance(0.15):
            labels = node["metadata"].get("labels", {})
            term["matchExpressions"] = [_node_expression(rng, labels, True)]
        if world.chance(0.1):
            term["matchFields"] *= 2
        terms.append(term)
    if world.chance(0.25):  # a term without a name lets every node through PreFilter
        terms.append(_node_term(world, rng.choice(world.nodes), hard=True))


def _tight_conflict(world: World) -> None:
    terms = _required_terms(world)
    terms.clear()
    for _ in range(world.rng.choice((1, 1, 2))):
        names = [n["metadata"]["name"] for n in world.rng.sample(world.nodes, 1)] + [GHOST]
        if len(world.nodes) > 1 and world.chance(0.7):
            names = [n["metadata"]["name"] for n in world.rng.sample(world.nodes, 2)]
        terms.append({"matchFields": [_named(name) for name in names]})
    if world.chance(0.15):  # one good term among them: no conflict
        terms.append({"matchFields": [_named(world.rng.choice(world.nodes)["metadata"]["name"])]})


def _tight_ports(world: World) -> None:
    rng = world.rng
    wanted = [_port(rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    for port in wanted:
        _place_port(world, world.pod, port)
    for node in world.some_nodes():
        for _ in range(rng.choice((1, 1, 2))):
            pod = _bound(world, node["metadata"]["name"])
            _place_port(world, pod, _port(rng, rng.choice(wanted)))


def _scarce(resource: str) -> Callable[[World], None]:
    def tighten(world: World) -> None:
        world.scarce.add(resource)
        spec = world.pod["spec"]
        containers = spec["containers"] + spec.get("initContainers", [])
        container = world.rng.choice(containers if world.chance(0.3) else spec["containers"])
        resources = container.setdefault("resources", {})
        asked = resources.setdefault("requests", {})
        if amount(asked.get(resource, "0")) == 0 and world.chance(0.95):
            asked[resource] = world.rng.choice([q for q in AMOUNTS[resource] if amount(q) > 0])
        if resource == HUGE:
            asked.setdefault("memory", "64Mi")
        if resource in (GPU, FOO, HUGE) and resource in asked:
            resources.setdefault("limits", {})[resource] = asked[resource]
        if "resources" in spec and resource in spec["resources"].get("requests", {}):
            sums = sum(
                (amount(c.get("resources", {}).get("requests", {}).get(resource, "0")))
                for c in containers
            )
            extra = amount(world.rng.choice(AMOUNTS[resource])) if world.chance(0.5) else 0
            total = Fraction(sums) + extra
            spelled = plain(total) if spec.get("overhead") else spell(world.rng, total)
            spec["resources"]["requests"][resource] = spelled
            if resource == HUGE:
                spec["resources"]["limits"] = dict(spec["resources"]["requests"])
        elif resource == HUGE and "resources" not in spec and world.chance(0.5):
            _pod_level(world, spec)

    return tighten


def _tight_count(world: World) -> None:
    world.scarce.add("pods")


def _constraint(world: World, *, hard: bool) -> Json:
    rng, pod = world.rng, world.pod
    target = pod if world.chance(0.65) or not world.pods else rng.choice(world.pods)
    labels = target["metadata"].get("labels", {})
    constraint: Json = {
        "maxSkew": rng.choice((1, 1, 2, 3)),
        "topologyKey": rng.choice(TOPOLOGY),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
    }
    if world.chance(0.88):
        constraint["labelSelector"] = {} if world.chance(0.05) else _selector(rng, labels)
    if world.chance(0.3):
        _merge_keys(rng, constraint, pod["metadata"].get("labels", {}), mismatch=False)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if world.chance(0.45):
            constraint[policy] = rng.choice(("Honor", "Ignore"))
    return constraint


def _domains(world: World, constraint: Json) -> dict[str, int]:
    """How many pods that the constraint selects are in each domain, whatever its policies."""
    key, counts = constraint["topologyKey"], {}
    domain_of = {}
    for node in world.nodes:
        domain = node["metadata"].get("labels", {}).get(key)
        if domain is not None:
            counts[domain] = 0
            domain_of[node["metadata"]["name"]] = domain
    for pod in world.pods:
        here = domain_of.get(pod["spec"]["nodeName"])
        if here is None or not _alive(pod) or "deletionTimestamp" in pod["metadata"]:
            continue
        if pod["metadata"]["namespace"] != world.pod["metadata"]["namespace"]:
            continue
        labels, own = (p["metadata"].get("labels", {}) for p in (pod, world.pod))
        keys = [key for key in constraint.get("matchLabelKeys", []) if key in own]
        if any(labels.get(key) != own[key] for key in keys):
            continue
        counts[here] += matches(constraint.get("labelSelector"), labels)
    return counts


def _add_constraint(world: World, constraint: Json) -> None:
    constraints = world.pod["spec"].setdefault("topologySpreadConstraints", [])
    new = (constraint["topologyKey"], constraint["whenUnsatisfiable"])
    if all((c["topologyKey"], c["whenUnsatisfiable"]) != new for c in constraints):
        constraints.append(constraint)


def _tight_spread(world: World) -> None:
    rng = world.rng
    for _ in range(rng.choice((1, 1, 1, 2))):
        constraint = _constraint(world, hard=True)
        for node in world.some_nodes():
            pod = _bound(world, node["metadata"]["name"], like=world.pod)
            if world.chance(0.15):
                pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        _aim(world, constraint)
        _add_constraint(world, constraint)


def _aim(world: World, constraint: Json) -> None:
    """Sets maxSkew, and maybe minDomains, to where they just allow or just forbid some domain."""
    rng, counts = world.rng, _domains(world, constraint)
    if not counts:
        return
    own = matches(constraint.get("labelSelector"), world.pod["metadata"].get("labels", {}))
    skew = rng.choice(sorted(counts.values())) + own - min(counts.values())
    constraint["maxSkew"] = max(1, skew - rng.choice((0, 1, 1, -1)))
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" and world.chance(0.3):
        constraint["minDomains"] = max(1, len(counts) + rng.choice((-1, 0, 0, 1, 1)))


def _tight_policies(world: World) -> None:
    """Spread where it matters whether nodes that the pod cannot use are counted."""
    rng, pod = world.rng, world.pod
    excluded = world.some_nodes()
    taints = world.chance(0.5)
    for node in world.nodes:
        out = any(node is other for other in excluded)
        if taints and out:
            node["spec"]["taints"] = [{"key": "dedicated", "effect": rng.choice(EFFECTS[:2])}]
        elif not taints:
            node["metadata"].setdefault("labels", {})["disk"] = "hdd" if out else "ssd"
    if not taints:
        pod["spec"]["nodeSelector"] = {"disk": "ssd"}
    pod["metadata"].setdefault("labels", {}).setdefault("app", "a")
    for node in excluded + world.some_nodes():
        for _ in range(rng.choice((0, 1, 1, 2))):
            _bound(world, node["metadata"]["name"], like=pod)
    constraint = _constraint(world, hard=not world.scored)
    constraint["topologyKey"] = rng.choice((ZONE, RACK))
    constraint["labelSelector"] = {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}
    constraint.pop("matchLabelKeys", None)
    policy = "nodeTaintsPolicy" if taints else "nodeAffinityPolicy"
    constraint[policy] = rng.choice(("Honor", "Ignore"))
    _aim(world, constraint)
    _add_constraint(world, constraint)


def _tight_labels(world: World) -> None:
    rng, constraint = world.rng, _constraint(world, hard=True)
    constraint["maxSkew"] = rng.choice((3, 10))
    for node in world.some_nodes():
        node["metadata"].get("labels", {}).pop(constraint["topologyKey"], None)
    _add_constraint(world, constraint)


def _tight_pod_affinity(world: World) -> None:
    rng, pod = world.rng, world.pod
    for _ in range(rng.choice((1, 2, 2))):
        alive = [p for p in world.pods if _alive(p)]
        target = rng.choice(alive) if alive and world.chance(0.85) else pod
        if world.chance(0.05):
            _add_term(pod, "podAffinity", _term(world, pod, None))
        else:
            _add_term(pod, "podAffinity", _term(world, pod, target))
    if world.chance(0.12):  # the first of a series, or nearly
        pod["metadata"].setdefault("labels", {})["app"] = "first"
        term = {"topologyKey": rng.choice(TOPOLOGY), "labelSelector": {}}
        term["labelSelector"] = {"matchLabels": {"app": "first"}}
        required = [term]
        if world.chance(0.2):
            required.append(_term(world, pod, pod))
        pod["spec"]["affinity"]["podAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": required
        }
        for node in world.some_nodes() if world.chance(0.5) else ():
            node["metadata"].get("labels", {}).pop(term["topologyKey"], None)


def _tight_pod_anti_affinity(world: World) -> None:
    rng, pod = world.rng, world.pod
    for _ in range(rng.choice((1, 1, 2))):
        alive = [p for p in world.pods if _alive(p)]
        target = rng.choice(alive) if alive and world.chance(0.9) else None
        _add_term(pod, "podAntiAffinity", _term(world, pod, target))


def _tight_existing_anti_affinity(world: World) -> None:
    rng = world.rng
    for _ in range(rng.choice((1, 1, 2, 3))):
        if world.pods and world.chance(0.7):
            other = rng.choice(world.pods)
        else:
            other = _bound(world, rng.choice(world.nodes)["metadata"]["name"])
        _add_term(other, "podAntiAffinity", _term(world, other, world.pod))


# The features, how often each is in focus, and what makes it tight. Resources and the count of pods
# are made scarce in `_allocate`.
FOCI: dict[str, tuple[float, Callable[[World], None]]] = {
    "existing-anti-affinity": (1.7, _tight_existing_anti_affinity),
    "ports": (2.2, _tight_ports),
    "spread": (3.0, _tight_spread),
    "policies": (1.8, _tight_policies),
    "labels": (0.8, _tight_labels),
    "pod-affinity": (2.3, _tight_pod_affinity),
    "pod-anti-affinity": (2.5, _tight_pod_anti_affinity),
    "taints": (1.5, _tight_taints),
    "unschedulable": (1.1, _tight_unschedulable),
    "name": (1.1, _tight_name),
    "affinity": (2.8, _tight_affinity),
    "names": (0.7, _tight_names),
    "conflict": (0.7, _tight_conflict),
    "count": (1.2, _tight_count),
    **{
        resource: (0.8 if resource in (NATIVE, ATTACHABLE) else 1.0, _scarce(resource))
        for resource in AMOUNTS
    },
}


# The whole


def _alive(pod: Json) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def _bound(world: World, node: str, like: Json | None = None) -> Json:
    """One more bound pod; one like another has its labels and is in its namespace."""
    pod = _pod(world, f"p{len(world.pods)}", node)
    if like is not None:
        pod["metadata"]["namespace"] = like["metadata"]["namespace"]
        labels = dict(like["metadata"].get("labels", {}))
        for key in ("tier", "rev"):
            if key in labels and world.chance(0.25):
                labels[key] = world.rng.choice(POD_LABELS[key])
        pod["metadata"]["labels"] = labels
    world.pods.append(pod)
    return pod


def _noise(world: World) -> None:
    """What is set without refusing a node: preferences, and terms about nobody here."""
    rng, pod = world.rng, world.pod
    spec = pod["spec"]
    often = 3.0 if world.scored else 1.0
    if world.chance(0.2):
        near = _taint(rng)
        spec.setdefault("tolerations", []).append(_toleration(rng, near))
    if world.chance(0.03):
        spec["nodeSelector"] = spec.get("nodeSelector", {})
    if world.chance(0.15 * often):
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {
                "weight": rng.choice((1, 2, 10, 50, 100)),
                "preference": {}
                if world.chance(0.1)
                else _node_term(world, rng.choice(world.nodes), hard=False),
            }
            for _ in range(rng.randint(1, 3))
        ]
    for kind in ("podAffinity", "podAntiAffinity"):
        for _ in range(rng.randint(1, 2) if world.chance(0.15 * often) else 0):
            target = rng.choice(world.pods) if world.pods and world.chance(0.8) else None
            _add_term(pod, kind, _term(world, pod, target), rng.choice((1, 5, 10, 100)))
    if world.chance(0.25 * often):
        for _ in range(rng.choice((1, 2, 2, 3))):
            _add_constraint(world, _constraint(world, hard=False))
    for other in world.pods:
        for kind in ("podAffinity", "podAntiAffinity"):
            if world.chance(0.06):
                target = pod if world.chance(0.6) else None
                _add_term(other, kind, _term(world, other, target), rng.choice((1, 7, 100)))
        if world.chance(0.05):
            _add_term(other, "podAffinity", _term(world, other, pod if world.chance(0.6) else None))
        if world.chance(0.04):
            term = _term(world, other, None)
            term["labelSelector"] = {"matchLabels": {"app": "nobody"}}
            _add_term(other, "podAntiAffinity", term)


def _allocate(world: World) -> None:
    """Gives each node what the pods on it take, and the new pod's request, more or less exactly."""
    rng = world.rng
    asked = requests(world.pod)
    lacking = {r: {n["metadata"]["name"] for n in world.some_nodes()} for r in sorted(world.scarce)}
    unheard = {
        r for r in sorted(world.scarce) if r in UNCOMMON and world.chance(0.08)
    }  # on no node
    for node in world.nodes:
        name = node["metadata"]["name"]
        here = [p for p in world.pods if p["spec"]["nodeName"] == name and _alive(p)]
        taken: dict[str, int] = {}
        for pod in here:
            for resource, value in requests(pod).items():
                taken[resource] = taken.get(resource, 0) + value
        allocatable: Json = {}
        for resource in AMOUNTS:
            need, used = asked.get(resource, 0), taken.get(resource, 0)
            has = _allocatable(world, resource, need, used, name in lacking.get(resource, ()))
            if has is not None and resource not in unheard:
                allocatable[resource] = has
        room = len(here) + 1 + rng.choice((0, 0, 1, 50, 109))
        if name in lacking.get("pods", ()):
            room = rng.choice((len(here), len(here), 0, max(0, len(here) - 1)))
        if room or world.chance(0.6):
            allocatable["pods"] = spell(rng, Fraction(room))
        node["status"]["allocatable"] = allocatable
        if world.chance(0.1):
            node["status"]["capacity"] = {**allocatable, "cpu": "128"}


def _allocatable(
    world: World, resource: str, need: int, used: int, lacking: bool
) -> str | int | None:
    rng = world.rng
    unit = 2 * MI if resource == HUGE else 1
    roomy = rng.choice(ROOMY[resource])
    if lacking and need:
        if world.chance(0.12):
            return None if world.chance(0.5) else "0"
        value = max(0, used + need - unit * rng.choice((1, 1, 1, 2, 100)))
    elif need:
        value = used + need + unit * rng.choice((0, 0, 1, 10, 100))
        if world.chance(0.6):
            value = max(value, roomy)
    else:
        if resource in UNCOMMON and world.chance(0.6):
            return None
        if world.chance(0.06):
            return None if world.chance(0.5) else "0"
        value = max(used, roomy)
        if world.chance(0.3 if world.scored else 0.1):
            value = max(0, rng.choice((used - unit, used // 2)))
    exact = Fraction(value, 1000) if resource == "cpu" else Fraction(value)
    if resource == "cpu" and value and world.chance(0.05):
        exact -= Fraction(1, 2000)  # rounded up again
    return spell(rng, exact)


def _build(rng: random.Random, focus: Sequence[str], *, scored: bool, size: int) -> Json:
    world = World(rng, scored)
    names = rng.sample(NAMESPACES, rng.randint(1, 4))
    world.namespaces = [_namespace(world, name) for name in names]
    world.nodes = [_node(world, f"n{i}") for i in range(size)]
    world.pod = _pod(world, "new", None)
    for _ in range(rng.choice((0, rng.randint(1, 6), rng.randint(3, 12), min(2 * size, 20)))):
        near = world.pod if world.chance(0.3) else None
        node = GHOST if world.chance(0.02) else rng.choice(world.nodes)["metadata"]["name"]
        _bound(world, node, like=near)
    for feature in focus:
        FOCI[feature][1](world)
    del world.pods[30 if size <= 12 else 3 * size :]
    _noise(world)
    _allocate(world)
    return {
        "nodes": world.nodes,
        "pods": world.pods,
        "namespaces": world.namespaces,
        "pod": world.pod,
    }


def case(rng: random.Random) -> Json:
    """One random case."""
    names = list(FOCI)
    roll = rng.random()
    if roll < 0.06:
        focus: list[str] = []
    elif roll < 0.16:
        focus = [name for name in names if name not in ("conflict", "name") and rng.random() < 0.4]
    else:
        weights = [FOCI[name][0] for name in names]
        chosen = set(rng.choices(names, weights, k=rng.choice((1, 2, 2, 3, 3))))
        focus = [name for name in names if name in chosen]
    return _build(rng, focus, scored=False, size=rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 10, 12)))


def plain_case(rng: random.Random) -> Json:
    """A case in which nothing is tight."""
    return _build(rng, [], scored=False, size=rng.choice((1, 2, 3, 4, 6, 8, 12)))


def cases(seed: int, count: int) -> Iterator[Json]:
    """This many cases; each has its own generator, so that any one can be made again alone."""
    for index in range(count):
        yield case(random.Random(f"{seed}/{index}"))


SOFT = ("taints", "affinity", "spread", "policies", "pod-anti-affinity", "cpu", "labels")


def score_case(rng: random.Random) -> Json:
    """A case with several feasible nodes, many preferences, and the options of the scores."""
    focus = [rng.choice(SOFT)] if rng.random() < 0.5 else []
    size = rng.choice((2, 3, 4, 5, 6, 8, 10, 12, 25, 40))
    result = _build(rng, focus, scored=True, size=size)
    return {**result, "scores": True, **_score_options(rng)}


def _score_options(rng: random.Random) -> Json:
    options: Json = {}
    if rng.random() < 0.7:
        # few distinct ones, as building a scheduler for each is slow
        options["strategy"] = _strategy(random.Random(rng.randrange(40)))
    if rng.random() < 0.3:
        few = random.Random(rng.randrange(10))
        options["balanced"] = [{"name": r, "weight": 1} for r in _scored_resources(few)]
    if rng.random() < 0.3:
        options["hardPodAffinityWeight"] = rng.choice((0, 1, 5, 100))
    if rng.random() < 0.2:
        options["ignorePreferredTermsOfExistingPods"] = True
    return options


def _scored_resources(rng: random.Random) -> list[str]:
    others = ["memory", EPHEMERAL, GPU, FOO, HUGE]
    return ["cpu", *rng.sample(others, rng.randint(0, 3))]


def _strategy(rng: random.Random) -> Json:
    kind = rng.choice(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"))
    resources = [
        {"name": r, "weight": rng.choice((1, 1, 2, 5, 100))} for r in _scored_resources(rng)
    ]
    strategy: Json = {"type": kind, "resources": resources}
    if kind == "RequestedToCapacityRatio":
        points = sorted(rng.sample(range(0, 101, 10), rng.randint(1, 4)))
        shape = [{"utilization": u, "score": rng.randint(0, 10)} for u in points]
        strategy["shape"] = shape
    return strategy
