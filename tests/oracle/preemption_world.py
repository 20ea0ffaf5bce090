"""The objects of a case about preemption: pods with priorities and start times, and budgets.

Left out is what kube-scheduler forgets to count, or counts twice, only while it thinks pods away:
- a terminating pod that a spread constraint of the new pod selects: it is not counted, but is
  taken off the count;
- pods on one node with the same host port, which no scheduler puts there: the port is free as soon
  as one of them is gone.
And pods on one node can stand in at most `MOST_ORDERS` orders of importance, as all are tried.
"""

import random
from collections import Counter
from math import factorial, prod
from typing import Any

from tests.oracle.cases import FOO, GPU, HOST, ZONE

Json = dict[str, Any]

MOST_ORDERS = 48
DELETED = "2026-01-02T03:04:05Z"
NAMESPACES = ("default", "red")
LABELS: dict[str, tuple[str, ...]] = {"app": ("a", "b", "c"), "tier": ("x", "y")}
PRIORITIES = (-(2**31), -7, 0, 0, 1, 5, 5, 100, 10**9, 2 * 10**9 + 1000)
AMOUNTS: dict[str, tuple[int, ...]] = {  # cpu in milli
    "cpu": (100, 200, 500, 500, 1000, 2000),
    "memory": (2**28, 2**29, 2**30),
    GPU: (1, 1, 2, 4),
    FOO: (1, 3),
}
SHARE = {"cpu": 0.85, "memory": 0.5, GPU: 0.35, FOO: 0.15}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
NOT_PREEMPTED: tuple[Json | None, ...] = (
    None,
    {**PREEMPTED, "status": "False"},
    {**PREEMPTED, "reason": "EvictionByEvictionAPI"},
)


def start_time(number: int) -> str:
    """The later the greater the number."""
    return f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z"


class Builder:
    """A case while it is being built."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.priorities = sorted(rng.sample(PRIORITIES, rng.choice((1, 2, 2, 3, 4))))
        self.starts = rng.sample(range(8), rng.choice((1, 1, 2, 2, 6)))
        self.nodes: list[Json] = []
        self.pods: list[Json] = []
        self.scarce: set[str] = set()
        self.repeated = False  # the nodes are mostly alike
        self.pod = self.new_pod()

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # ---- objects

    def new_pod(self) -> Json:
        pod = self._pod("new", self.rng.choice(NAMESPACES))
        pod["status"] = {"phase": "Pending"}
        return pod

    def _pod(self, name: str, namespace: str) -> Json:
        rng = self.rng
        labels = {k: rng.choice(v) for k, v in LABELS.items() if self.chance(0.8)}
        asked = {
            r: f"{rng.choice(amounts)}{'m' if r == 'cpu' else ''}"
            for r, amounts in AMOUNTS.items()
            if self.chance(SHARE[r])
        }
        container: Json = {"name": "c", "image": "app", "resources": {"requests": asked}}
        metadata: Json = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        if labels:
            metadata["labels"] = labels
        return {"metadata": metadata, "spec": {"containers": [container]}}

    def bind(self, node: str, like: Json | None = None) -> Json:
        """One more bound pod; one like another has its labels and its namespace."""
        pod = self._pod(f"p{len(self.pods)}", self.rng.choice(NAMESPACES))
        if like is not None:
            pod["metadata"]["namespace"] = like["metadata"]["namespace"]
            pod["metadata"]["labels"] = dict(like["metadata"].get("labels", {}))
        pod["spec"]["nodeName"] = node
        pod["status"] = {"phase": "Running"}
        self.pods.append(pod)
        return pod

    def node(self, name: str) -> Json:
        labels = {HOST: name, ZONE: self.rng.choice(("z1", "z2")), "disk": "ssd"}
        if self.chance(0.05):
            del labels[ZONE]
        return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}}

    # ---- what matters to preemption, on any case

    def age(self) -> None:
        """Priorities, start times, and pods that are on their way out."""
        rng, middle = self.rng, self.priorities[len(self.priorities) // 2]
        own = rng.choices((max(self.priorities) + 1, middle, min(self.priorities)), (72, 20, 8))[0]
        self.pod["spec"]["priority"] = min(own, 2**31 - 1)
        if own == 0 and self.chance(0.5):
            del self.pod["spec"]["priority"]
        for pod in self.pods:
            pod["spec"]["priority"] = rng.choice(self.priorities)
            if pod["spec"]["priority"] == 0 and self.chance(0.5):
                del pod["spec"]["priority"]
            if self.chance(0.85):
                pod["status"]["startTime"] = start_time(rng.choice(self.starts))
            if self.chance(0.06):
                pod["metadata"]["deletionTimestamp"] = DELETED

    def nominate(self) -> None:
        """Whether the pod may preempt at all, or again."""
        rng = self.rng
        if self.chance(0.1):
            self.pod["spec"]["preemptionPolicy"] = rng.choice(("Never", "PreemptLowerPriority"))
        if not self.chance(0.18):
            return
        nominated = rng.choice([*(node["metadata"]["name"] for node in self.nodes), "gone"])
        self.pod["status"]["nominatedNodeName"] = nominated
        there = [pod for pod in self.pods if pod["spec"]["nodeName"] == nominated]
        for pod in rng.sample(there, min(len(there), rng.choice((1, 1, 2)))):
            if self.chance(0.85):
                pod["metadata"]["deletionTimestamp"] = DELETED
            condition = PREEMPTED if self.chance(0.7) else rng.choice(NOT_PREEMPTED)
            if condition is not None:
                pod["status"].setdefault("conditions", []).append(dict(condition))

    def budget(self, name: str) -> Json:
        rng = self.rng
        namespaces = [pod["metadata"]["namespace"] for pod in self.pods] or ["default"]
        namespace = rng.choice(namespaces)
        held = [p["metadata"] for p in self.pods if p["metadata"]["namespace"] == namespace]
        labels = rng.choice(held).get("labels", {}) if held else {}
        status: Json = {"disruptionsAllowed": rng.choice((0, 0, 0, 1, 1, 2, 3))}
        if self.chance(0.2) and held:
            some = rng.sample(held, min(len(held), rng.choice((1, 2))))
            status["disruptedPods"] = {each["name"]: DELETED for each in some}
        spec: Json = {}
        if not self.chance(0.04):
            spec["selector"] = self._selector(labels)
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
            "spec": spec,
            "status": status,
        }

    def _selector(self, labels: dict[str, str]) -> Json:
        rng, keys = self.rng, sorted(labels)
        if not keys or self.chance(0.06):
            return {} if self.chance(0.5) else {"matchExpressions": [_absent("nokey")]}
        key = rng.choice(keys)
        some: Json = {"key": key, "operator": "In", "values": sorted({labels[key], "b"})}
        return rng.choice(
            (
                {"matchLabels": {key: labels[key]}},
                {"matchLabels": {key: labels[key]}},
                {"matchLabels": dict(labels)},
                {"matchExpressions": [{"key": key, "operator": "Exists"}]},
                {"matchExpressions": [some]},
                {"matchLabels": {key: labels[key]}, "matchExpressions": [_absent("nokey")]},
            )
        )

    # ---- what is left out

    def leave_out(self) -> None:
        hard = any(
            constraint["whenUnsatisfiable"] == "DoNotSchedule"
            for constraint in self.pod["spec"].get("topologySpreadConstraints", ())
        )
        taken: set[tuple[str, str, str, int]] = set()
        for pod in self.pods:
            if hard:
                pod["metadata"].pop("deletionTimestamp", None)
            spec = pod["spec"]
            own = set()
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                kept = []
                for port in container.get("ports", ()):
                    ip, protocol = port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP"
                    key = (spec["nodeName"], ip, protocol, port.get("hostPort", 0))
                    if not key[-1] or key not in taken:
                        own.add(key)
                        kept.append(port)
                if "ports" in container:
                    container["ports"] = kept
            taken |= own
        for node in {pod["spec"]["nodeName"] for pod in self.pods}:
            self._bound_orders([pod for pod in self.pods if pod["spec"]["nodeName"] == node])

    def _bound_orders(self, pods: list[Json]) -> None:
        """Moves start times apart until the pods do not stand in too many orders."""
        later = 100
        while True:
            ranks = [(p["spec"].get("priority", 0), p["status"].get("startTime")) for p in pods]
            equal = Counter(ranks)
            if prod(map(factorial, equal.values())) <= MOST_ORDERS:
                return
            most, _ = equal.most_common(1)[0]
            pods[ranks.index(most)]["status"]["startTime"] = start_time(later)
            later += 1

    def finish(self) -> Json:
        self.nominate()
        self.leave_out()
        count = self.rng.choice((0, 1, 2, 2, 3, 4))
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "namespaces": [{"metadata": {"name": name}} for name in NAMESPACES],
            "poddisruptionbudgets": [self.budget(f"b{i}") for i in range(count)],
            "pod": self.pod,
            "preempt": True,
        }


def _absent(key: str) -> Json:
    return {"key": key, "operator": "DoesNotExist"}
