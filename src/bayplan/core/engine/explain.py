"""Why a pod does not fit, from the verdicts, in kube-scheduler's words."""

from collections.abc import Iterator

import numpy as np

from bayplan.core.engine.verdicts import ABSENT, Verdicts, decoded, is_rejection
from bayplan.core.model.verdicts import EventKind, Help, Reason, Refusal, Tally
from bayplan.core.plugins.hooks import Ask, Hopeless
from bayplan.core.state.arrays import Ints, Mask, distinct
from bayplan.core.state.view import View

SHOWN_NODES = 10


def refusal(verdicts: Verdicts, ask: Ask, version: int) -> Refusal:
    """Why the pod fits nowhere."""
    cluster = verdicts.cluster
    verdict = verdicts.refusals(ask, View(cluster))
    tallies: dict[str, Tally] = {}
    helped: frozenset[Help] = frozenset()
    if not cluster.node_count:
        helped = frozenset({EventKind.NODE_ADDED})
    codes, first = np.unique(verdict, return_index=True)
    for code in codes[first.argsort()].tolist():  # by node: numbers are a plugin's own business
        if code >= 0 or code == ABSENT:
            continue
        rows = np.flatnonzero(verdict == code)
        names = sorted(cluster.name(int(row)) for row in rows[:SHOWN_NODES])
        for reason in reasons(verdicts, ask, code):
            before = tallies.get(reason.text, Tally(0, ()))
            nodes = (before.nodes + tuple(names))[:SHOWN_NODES]
            tallies[reason.text] = Tally(before.count + len(rows), nodes)
            helped |= reason.helped_by
    total = cluster.node_count
    rejected = verdicts.rejection(ask) is not None
    return Refusal(message(total, tallies, rejected=rejected), tallies, helped, version)


def message(total: int, tallies: dict[str, Tally], *, rejected: bool = False) -> str:
    """kube-scheduler's sentence; where it rejects the pod as a whole, it counts no nodes."""
    if not total:
        return "no nodes available to schedule pods"
    counted = sorted(
        text if rejected else f"{tally.count} {text}" for text, tally in tallies.items()
    )
    return f"0/{total} nodes are available: {', '.join(counted)}."


def reasons(verdicts: Verdicts, ask: Ask, code: int) -> Iterator[Reason]:
    """The reasons that a refusing verdict stands for."""
    plugin, bits = decoded(verdicts.profile, code)
    if is_rejection(verdicts.profile, code):
        rejection = verdicts.rejection(ask)
        if rejection is not None:
            yield rejection
        return
    explains = verdicts.profile.explains.get(plugin.name)
    if explains is not None:
        yield from explains.explain(ask, bits)
        return
    for bit, reason in enumerate(plugin.reasons(ask)):
        if bits >> bit & 1:
            yield reason


def preemption_helps(verdicts: Verdicts, ask: Ask, verdict: Ints) -> Mask:
    """The refused rows where removing pods could help."""
    helps = np.zeros(len(verdict), dtype=np.bool_)
    view = View(verdicts.cluster)
    for code in distinct(verdict[(verdict < 0) & (verdict != ABSENT)]):
        plugin, _ = decoded(verdicts.profile, int(code))
        if all(reason.preemption_helps for reason in reasons(verdicts, ask, int(code))):
            rows = verdict == code
            helps |= rows & ~plugin.hopeless(ask, view) if isinstance(plugin, Hopeless) else rows
    return helps
