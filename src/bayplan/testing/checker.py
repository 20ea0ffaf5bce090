"""A checker that plugin authors run on their own plugin.

    from bayplan.testing import check_plugin

    def test_my_plugin() -> None:
        check_plugin(MyPlugin(), cluster, pods)

It holds a plugin to what the engine relies on: the same answer for a row whether it is asked
alone, in a handful, or with all others; the same answer twice; no answer that depends on labels,
for static and load plugins and those that say so; nothing about row keys that do not concern it,
and no score for pods that it skips; of what it prepares for a row key the same as when it is asked
itself; codes that stand for reasons and scores within 0 to 100; and not one write to the cluster.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins.hooks import (
    MAX_SCORE,
    Ask,
    Concerns,
    IgnoresLabels,
    Normalise,
    PreparesFilter,
    PreparesScore,
    Reads,
    Skips,
)
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.laws import broken, picture
from bayplan.core.state.view import View

MOST_PLACED = 4  # pods, to see whether what was prepared follows the load


class PluginFault(AssertionError):
    """What the plugin does that the engine cannot live with."""


def check_plugin(plugin: Any, cluster: Cluster, pods: Sequence[Pod]) -> None:
    """Asks the plugin about every pod in several ways; raises PluginFault at the first fault."""
    name = getattr(plugin, "name", type(plugin).__name__)
    if not isinstance(getattr(plugin, "reads", None), Reads):
        raise PluginFault(
            f"{name} does not say what it reads: reads = Reads.STATIC, LOAD or CLUSTER"
        )
    before = picture(cluster)
    for pod in pods:
        own = None if pod.terms is None else cluster.acquire_terms(pod.terms)
        ask = Ask(pod, cluster.demand(pod.row), own, cluster.terms.concerning(pod))
        for method in ("refuse", "restrict", "score"):
            if hasattr(plugin, method):
                _check_method(plugin, name, method, ask, cluster)
        if hasattr(plugin, "reject"):
            _check_reject(plugin, f"{name}.reject for {pod.key}", ask, cluster)
        if own is not None:
            cluster.release_terms(own)
        if picture(cluster) != before or broken(cluster):
            raise PluginFault(f"{name} wrote to the cluster while it was asked about {pod.key}")


def _check_method(plugin: Any, name: str, method: str, ask: Ask, cluster: Cluster) -> None:
    whole = _answer(plugin, method, ask, View(cluster))
    where = f"{name}.{method} for {ask.pod.key}"
    if len(whole) != cluster.height:
        raise PluginFault(f"{where} gave {len(whole)} answers for {cluster.height} rows")
    if (_answer(plugin, method, ask, View(cluster)) != whole).any():
        raise PluginFault(f"{where} gave another answer the second time")
    _check_values(plugin, where, method, ask, whole)
    _check_prepared(plugin, where, method, ask, cluster)
    if isinstance(plugin, Concerns) and not plugin.concerns(ask.pod.row) and whole.any():
        raise PluginFault(f"{where} has an answer, but says that the row key does not concern it")
    if method == "score" and isinstance(plugin, Skips) and plugin.skips(ask) and whole.any():
        raise PluginFault(f"{where} has a score, but says that it skips the pod")
    alive = np.flatnonzero(cluster.alive[: cluster.height])
    if method != "score" or plugin.reads is not Reads.CLUSTER:
        _check_parts(plugin, where, method, ask, cluster, whole, alive)
    if plugin.reads is not Reads.CLUSTER or isinstance(plugin, IgnoresLabels):
        other = replace(ask.pod, labels={**ask.pod.labels, "checked-by": "another label"})
        again = _answer(plugin, method, Ask(other, ask.demand, ask.own), View(cluster))
        if (again != whole)[alive].any():
            raise PluginFault(f"{where} depends on labels, but it reads {plugin.reads.name}")


def _check_prepared(plugin: Any, where: str, method: str, ask: Ask, cluster: Cluster) -> None:
    """What is asked where verdicts are kept must say the same: of all rows, some and one, and also
    when more is in use than there was when it was prepared."""
    prepared: Any = None
    if method == "refuse" and isinstance(plugin, PreparesFilter):
        prepared = plugin.refuser(ask)
    elif method == "score" and isinstance(plugin, PreparesScore):
        prepared = plugin.scorer(ask, cluster)
    if prepared is None:
        return
    alive = np.flatnonzero(cluster.alive[: cluster.height])
    _compare_prepared(plugin, where, method, ask, cluster, prepared)
    if (
        ask.demand.unknown
    ):  # placing the pod gives a resource its column, and the key another demand
        return
    with cluster.trial():
        for row in alive[:MOST_PLACED].tolist():
            other = replace(ask.pod, uid=f"checked-{row}", held=None, terms=None)
            cluster.place(other, cluster.name(row))
        _compare_prepared(plugin, where, method, ask, cluster, prepared)


def _compare_prepared(
    plugin: Any, where: str, method: str, ask: Ask, cluster: Cluster, prepared: Any
) -> None:
    alive = np.flatnonzero(cluster.alive[: cluster.height])
    whole = _answer(plugin, method, ask, View(cluster))
    for rows in [None, alive, alive[::3], alive[:1]]:
        view = View(cluster, rows)
        before = np.stack((view.free, view.allocatable))
        found = prepared(view)
        if (np.stack((view.free, view.allocatable)) != before).any():
            raise PluginFault(f"{where} prepares what writes to the view")
        if found is None:
            found = np.zeros(len(view), dtype=np.int64)
        if len(found) != len(view):
            raise PluginFault(
                f"{where} prepares what gives {len(found)} answers for {len(view)} rows"
            )
        if method == "score" and found.dtype != np.int64:
            raise PluginFault(f"{where} prepares scores of {found.dtype}, not int64")
        at = alive if rows is None else np.arange(len(rows))
        expected, found = whole[alive if rows is None else rows], found[at]
        if method == "refuse":
            expected, found = expected != 0, found != 0
        if (found != expected).any():
            raise PluginFault(f"{where} and what it prepares say different things")


def _check_reject(plugin: Any, where: str, ask: Ask, cluster: Cluster) -> None:
    reason = plugin.reject(ask, cluster)
    if reason is not None and not isinstance(reason, Reason):
        raise PluginFault(f"{where} gave {reason!r}, not a Reason")
    if plugin.reject(ask, cluster) != reason:
        raise PluginFault(f"{where} gave another answer the second time")
    other = replace(ask.pod, labels={**ask.pod.labels, "checked-by": "another label"})
    if plugin.reject(Ask(other, ask.demand, ask.own), cluster) != reason:
        raise PluginFault(f"{where} depends on labels, which are not part of a row key")


def _check_parts(
    plugin: Any, where: str, method: str, ask: Ask, cluster: Cluster, whole: Any, alive: Any
) -> None:
    """Row by row, and every other row, must give what all rows at once give."""
    for rows in [*alive[:, np.newaxis], alive[::2], alive[::-1]]:
        part = _answer(plugin, method, ask, View(cluster, rows))
        if (part != whole[rows]).any():
            row = int(rows[np.flatnonzero(part != whole[rows])[0]])
            node = cluster.nodes[row]
            raise PluginFault(
                f"{where} says {whole[row]} for node {node and node.name} among all rows, "
                f"but {part[np.flatnonzero(rows == row)[0]]} among {len(rows)}"
            )


def _check_values(plugin: Any, where: str, method: str, ask: Ask, whole: Any) -> None:
    if method == "score":
        if plugin.reads is not Reads.CLUSTER and isinstance(plugin, Normalise) and len(whole):
            whole = plugin.normalise(whole, int(whole.max()))
        if len(whole) and not (whole.min() >= 0 and whole.max() <= MAX_SCORE):
            raise PluginFault(f"{where} gives a score outside 0 to {MAX_SCORE}")
        return
    known = (1 << len(plugin.reasons(ask))) - 1
    if any(int(code) & ~known or code < 0 for code in whole):
        raise PluginFault(f"{where} gives a code without a reason")


def _answer(plugin: Any, method: str, ask: Ask, view: View) -> Any:
    answer = getattr(plugin, method)(ask, view)
    if method == "score" and answer is not None and answer.dtype != np.int64:
        where = f"{getattr(plugin, 'name', type(plugin).__name__)}.score for {ask.pod.key}"
        raise PluginFault(f"{where} gives scores of {answer.dtype}, not int64: sums would overflow")
    return np.zeros(len(view), dtype=np.int64) if answer is None else answer.astype(np.int64)
