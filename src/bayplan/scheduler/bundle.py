"""A support bundle: what the scheduler knows and decided, in a form that can be handed on.

Everything is built from the engine's own values, which hold no environment, arguments or
annotations of pods; of the configuration, whatever is called a secret is left out.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model.budgets import Budget
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster
from bayplan.scheduler.journal import outcomes

LAST = 1000  # decisions
LEFT_OUT = "(left out)"
# Names of fields as they stand in kubeconfigs and configurations, without case, "-" and "_".
_SECRET = re.compile(r"token|passw|secret|credential|certificate|keydata|authorization|apikey|auth")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")

Json = dict[str, Any]


class Decisions:
    """The last effects of the engine, oldest first."""

    def __init__(self, last: int = LAST) -> None:
        self._ring: deque[tuple[float, do.Effect]] = deque(maxlen=last)

    def add(self, effect: do.Effect, now: float) -> None:
        self._ring.append((now, effect))

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[tuple[float, do.Effect]]:
        return iter(self._ring)


def bundle(engine: Engine, config: object, decisions: Decisions, version: str) -> Json:
    """All of it; each entry becomes a file. Times are on the scheduler's own clock."""
    cluster = engine.cluster
    return {
        "version": {"bayplan": version, "state": cluster.version},
        "configuration": without_secrets(msgspec.to_builtins(config, str_keys=True)),
        "nodes": [_node(cluster, name, row) for name, row in sorted(cluster.rows.items())],
        "pods": _pods_by_node(engine),
        "queue": _queue(engine),
        "waiting": _waiting(engine),
        "assumed": [
            {**_pod(waiter.pod), "attempts": waiter.attempts} for waiter in engine.assumed.values()
        ],
        "held": [{**_pod(pod), "why": why} for pod, why in engine.held.values()],
        "unreadable": [{"uid": u, "node": n} for u, n in sorted(engine.unreadable.items())],
        "namespaces": dict(sorted(cluster.terms.namespaces.items())),
        "budgets": [_budget(budget) for _, budget in sorted(cluster.budgets.by_key.items())],
        "decisions": [_decision(effect, now) for now, effect in decisions],
    }


def without_secrets(value: Any) -> Any:
    """The value without what stands under a name that a secret would have."""
    if isinstance(value, Mapping):
        named = _SECRET.search(_plain(value.get("name", ""))) is not None
        return {
            key: LEFT_OUT if _is_secret(key, held, named) else without_secrets(held)
            for key, held in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return _IN_URL.sub("", value) if isinstance(value, str) else value


def _is_secret(key: object, held: Any, named: bool) -> bool:
    """`named`: the mapping is of the form {name: …, value: …}, and the name is a secret's."""
    if held is None or held == "" or isinstance(held, bool):
        return False
    return (named and key == "value") or _SECRET.search(_plain(key)) is not None


def _plain(key: object) -> str:
    return re.sub(r"[-_. ]", "", str(key)).lower()


def _node(cluster: Cluster, name: str, row: int) -> Json:
    node = cluster.nodes[row]
    assert isinstance(node, Node)
    free = cluster.free[row]
    return {
        "name": name,
        "uid": node.uid,
        "labels": node.labels,
        "taints": msgspec.to_builtins(node.taints),
        "unschedulable": node.unschedulable,
        "unreadablePods": int(cluster.unreadable[row]),
        "pods": len(cluster.residents[row]),
        "allocatable": node.allocatable,
        "free": {n: int(free[at]) for n, at in cluster.resource_columns.items() if free[at]},
    }


def _pods_by_node(engine: Engine) -> dict[str, list[Json]]:
    cluster = engine.cluster
    found: dict[str, list[Json]] = {}
    for uid, resident in cluster.pods.items():
        entry = {**_pod(resident.pod), "assumed": uid in engine.assumed}
        found.setdefault(cluster.name(resident.row), []).append(entry)
    for node, orphans in cluster.orphans.items():
        entries = [{**_pod(pod), "nodeKnown": False} for pod in orphans.values()]
        found.setdefault(node, []).extend(entries)
    return dict(sorted(found.items()))


def _budget(budget: Budget) -> Json:
    found: Json = msgspec.to_builtins(budget)
    return {**found, "disrupted": sorted(budget.disrupted)}


def _pod(pod: Pod) -> Json:
    said = {"gang": pod.gang and msgspec.to_builtins(pod.gang), "nominated": pod.nominated}
    return {
        **{name: value for name, value in said.items() if value},
        "name": pod.key,
        "uid": pod.uid,
        "scheduler": pod.scheduler,
        "priority": pod.priority,
        "labels": pod.labels,
        "requests": dict(pod.row.requests),
        "terminating": pod.terminating,
    }


def _queue(engine: Engine) -> Json:
    queue = engine.waiting
    schedulers = Counter(waiter.pod.scheduler for waiter, _ in queue.pods.values())
    return {
        "waiting": len(queue),
        "waitingByScheduler": dict(sorted(schedulers.items())),
        "groups": len(queue.groups),
        "groupsAsleep": queue.asleep,
        "assumed": len(engine.assumed),
        "maxInFlight": engine.max_in_flight,
        "held": len(engine.held),
        "pluginErrors": engine.plugin_errors,
        "pickerFallbacks": engine.picking.fallbacks,
    }


def _waiting(engine: Engine) -> list[Json]:
    """In the order in which they would be tried if none of them slept."""
    found = []
    for waiter, group in sorted(engine.waiting.pods.values(), key=lambda pair: pair[0].sort):
        entry = {
            **_pod(waiter.pod),
            "nodeSelector": dict(waiter.pod.row.node_selector),
            "attempts": waiter.attempts,
            "restsUntil": waiter.rested_at,
        }
        if group.refusal is not None:
            reasons = msgspec.to_builtins(group.refusal.tallies)
            entry |= {"message": group.refusal.sentence, "reasons": reasons}
            entry["sleepsUntil"] = group.sleeps_until
        found.append(entry)
    return found


def _decision(effect: do.Effect, now: float) -> Json:
    (outcome,) = outcomes([effect])
    entry: Json = {"now": now, **msgspec.to_builtins(outcome)}
    pod = effect.placement.pod if isinstance(effect, do.Bind) else getattr(effect, "pod", None)
    if pod is not None:
        entry["pod"] = pod.key
    if isinstance(effect, do.Preempt):
        entry["victims"] = [victim.key for victim in effect.victims]
    if isinstance(effect, do.Refuse):
        entry["message"] = effect.refusal.sentence
    return entry
