"""Verdicts: one number per row that says whether a pod fits there, and how well.

At least 0: it fits; the weighted score stands in the upper half and the tie-break in the lower, so
the best row is the largest number. Below 0: it does not; the number is the refusing plugin and its
reasons. Verdicts of static and load plugins are kept per row key and follow the change logs: the
rows that changed are asked again through the same plugins. What other pods' labels decide is
computed on top, for the few pods that it concerns.
"""

import zlib
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
from msgspec import Struct

from bayplan.core.engine.profile import Profile
from bayplan.core.model.pods import RowKey
from bayplan.core.plugins.hooks import Ask, Facts, Filter, Normalise, Reads, Score
from bayplan.core.plugins.node_affinity import named_nodes
from bayplan.core.state.arrays import Codes, Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

ABSENT = int(np.iinfo(np.int64).min)  # the row has no node
REASON_BITS = 48
SCORE_SHIFT = 32
RANK_MASK = (1 << 31) - 1
KEPT_BYTES = 512 << 20  # for kept verdicts, all keys together
FEW_NAMED = 16  # a pod pinned to so few nodes is asked on just their rows


class Relative(Struct):
    """A static score that is relative to the feasible rows."""

    weight: int
    plugin: Score
    raw: Ints
    low: int = 0
    high: int = 0

    def normalised(self, low: int, high: int) -> Ints:
        assert isinstance(self.plugin, Normalise)
        return self.weight * self.plugin.normalise(self.raw, low, high)


class Kept:
    """The verdicts of one row key over all rows, and how far they have read the logs."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.base: Ints = np.zeros(0, dtype=np.int64)  # refusals and scores of static plugins
        self.verdict: Ints = np.zeros(0, dtype=np.int64)
        self.relatives: list[Relative] = []
        self.constants: tuple[int, ...] = ()  # of relative scores that are equal on all rows
        self.facts: tuple[Hashable, ...] = ()
        self.static_position = -1
        self.load_position = -1


class Verdicts:
    """Asks a profile's plugins, and keeps what they said."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self.cluster = cluster
        self.profile = profile
        self._seed = np.uint32(zlib.crc32(profile.name.encode()))
        self._static = profile.of_kind(Reads.STATIC)
        self._load = profile.of_kind(Reads.LOAD)
        self._wide = profile.of_kind(Reads.CLUSTER)
        numbers = [[number for number, _ in kind[0]] for kind in (self._static, self._load, self._wide)]
        self._in_order = sum(numbers, []) == sorted(sum(numbers, []))
        self._facts = [score for _, score in self._static[1] if isinstance(score, Facts)]
        self._kept: OrderedDict[RowKey, Kept] = OrderedDict()

    # ---- questions

    def best(self, ask: Ask) -> tuple[int, Ints, Rows | None]:
        """The best row or -1, the verdicts, and their rows (None: all)."""
        view = self.narrowed(ask)
        verdict = self.on(ask, view) if view is not None else self.all_rows(ask)
        if not len(verdict):
            return -1, verdict, None
        at = int(verdict.argmax())
        rows = view.rows if view is not None else None
        if verdict[at] < 0:
            return -1, verdict, rows
        return (at if rows is None else int(rows[at])), verdict, rows

    def narrowed(self, ask: Ask) -> View | None:
        """A view of the few rows that the pod names, if it does."""
        names = (ask.row.node_name,) if ask.row.node_name else named_nodes(ask.row)
        if not names or len(names) > FEW_NAMED:
            return None
        rows = [row for name in names if (row := self.cluster.rows.get(name)) is not None]
        return View(self.cluster, np.array(rows, dtype=np.intp))

    def all_rows(self, ask: Ask) -> Ints:
        """The verdicts on all rows, from what is kept. Not to be written to."""
        kept = self.kept(ask)
        verdict = kept.verdict[: self.cluster.height]
        if ask.own is None and not ask.concerning:
            return verdict
        return self._clusterwide(ask, View(self.cluster), verdict.copy(), kept.relatives)

    def on(self, ask: Ask, view: View, *, scores: bool = True) -> Ints:
        """The verdicts on a view, computed afresh."""
        base, relatives, _ = self._static_part(ask, view, scores=scores)
        verdict = self._load_part(ask, view, base, scores=scores)
        for relative in relatives:
            self._normalise(relative, verdict)
        if ask.own is None and not ask.concerning:
            return verdict
        return self._clusterwide(ask, view, verdict, relatives, scores=scores)

    # ---- what is kept

    def kept(self, ask: Ask) -> Kept:
        kept = self._kept.get(ask.row)
        if kept is None:
            kept = self._kept[ask.row] = Kept(Ask(ask.pod, ask.demand))
            room = max(8, KEPT_BYTES // (24 * max(1, len(self.cluster.nodes))))
            while len(self._kept) > room:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(ask.row)
            if kept.ask.demand is not ask.demand:  # a resource got its column
                kept.ask = Ask(ask.pod, ask.demand)
                kept.load_position = -1
        self._refresh(kept)
        return kept

    def forget(self) -> None:
        self._kept.clear()

    def _refresh(self, kept: Kept) -> None:
        cluster = self.cluster
        if kept.static_position != cluster.static_log.head or self._facts:
            self._refresh_static(kept)
        head = cluster.load_log.head
        if kept.load_position == head:
            return
        rows = cluster.load_log.since(kept.load_position) if kept.load_position >= 0 else None
        if rows is None or len(rows) > cluster.height // 4:
            self._load_all(kept)
        else:
            self._load_rows(kept, rows)
        kept.load_position = head

    def _refresh_static(self, kept: Kept) -> None:
        """Brings `base` up to date; rows that it touches are in the load log too."""
        cluster = self.cluster
        facts = tuple(plugin.facts(kept.ask, cluster) for plugin in self._facts)
        head = cluster.static_log.head
        moved = kept.static_position != head
        if not moved and facts == kept.facts:
            return
        rows = cluster.static_log.since(kept.static_position) if kept.static_position >= 0 else None
        whole = rows is None or len(rows) > cluster.height // 8 or kept.relatives
        whole = whole or facts != kept.facts or len(kept.base) != len(cluster.nodes)
        if whole or not self._static_rows(kept, rows):
            base, relatives, kept.constants = self._static_part(kept.ask, View(cluster))
            kept.base = np.full(len(cluster.nodes), ABSENT)
            kept.base[: len(base)] = base
            kept.relatives = relatives
            kept.load_position = -1
        kept.facts = facts
        kept.static_position = head

    def _static_rows(self, kept: Kept, rows: Rows | None) -> bool:
        """Asks the static plugins again about a few rows; False when that is not enough."""
        assert rows is not None
        rows = rows[rows < self.cluster.height]
        base, relatives, constants = self._static_part(kept.ask, View(self.cluster, rows))
        if relatives or (constants != kept.constants and len(rows)):
            return False
        kept.base[rows] = base
        return True

    def _load_all(self, kept: Kept) -> None:
        view = View(self.cluster)
        kept.verdict = np.full(len(self.cluster.nodes), ABSENT)
        verdict = self._load_part(kept.ask, view, kept.base[: view.size])
        for relative in kept.relatives:
            self._normalise(relative, verdict)
        kept.verdict[: view.size] = verdict

    def _load_rows(self, kept: Kept, rows: Rows) -> None:
        if rows.size and rows.max() >= self.cluster.height:
            rows = rows[rows < self.cluster.height]
        view = View(self.cluster, rows)
        verdict = self._load_part(kept.ask, view, kept.base[rows])
        if kept.relatives:
            kept.verdict[rows] = verdict
            self._renormalise(kept, rows)
        else:
            kept.verdict[rows] = verdict

    def _renormalise(self, kept: Kept, rows: Rows) -> None:
        whole = kept.verdict[: self.cluster.height]
        feasible = whole >= 0
        for relative in kept.relatives:
            low, high = extremes(relative.raw, feasible)
            if (low, high) != (relative.low, relative.high):
                self._load_all(kept)
                return
        for relative in kept.relatives:
            part = Relative(relative.weight, relative.plugin, relative.raw[rows])
            added = part.normalised(relative.low, relative.high) << SCORE_SHIFT
            kept.verdict[rows] += np.where(kept.verdict[rows] >= 0, added, 0)

    # ---- the parts of a verdict

    def _static_part(
        self, ask: Ask, view: View, *, scores: bool = True
    ) -> tuple[Ints, list[Relative], tuple[int, ...]]:
        """Refusals, or scores with tie-break; and scores that are relative to the feasible rows.

        A relative score that is equal on all rows needs no comparing: it is added at once, and
        its raw value is given back, so that a few rows asked later can be held against it.
        """
        refused: Ints | None = None
        for number, restrict in self.profile.restricts:
            refused = merged(refused, number, restrict.restrict(ask, view))
        for number, plugin in self._static[0]:
            refused = merged(refused, number, plugin.refuse(ask, view))
        total: Ints | None = None
        relatives: list[Relative] = []
        constants: list[int] = []
        for weight, score in self._static[1] if scores else ():
            raw = score.score(ask, view)
            if raw is None:
                continue
            if isinstance(score, Normalise):
                low, high = (int(raw.min()), int(raw.max())) if len(raw) else (0, 0)
                if low != high:
                    relatives.append(Relative(weight, score, raw))
                    continue
                constants.append(low)
                raw = score.normalise(raw, low, high)
            total = weight * raw if total is None else total + weight * raw
        base = self._ranks(view)
        if total is not None:
            base += total << SCORE_SHIFT
        if refused is not None:
            base = np.where(refused < 0, refused, base)
        return np.where(view.alive, base, ABSENT), relatives, tuple(constants)

    def _ranks(self, view: View) -> Ints:
        """The tie-break: larger is better; constant for a node's life."""
        hashes = view.cluster.hashes[view.row_numbers if view.rows is not None else slice(0, view.size)]
        mixed = (hashes ^ self._seed) * np.uint32(2654435761)
        return (mixed >> np.uint32(1)).astype(np.int64)

    def _load_part(self, ask: Ask, view: View, base: Ints, *, scores: bool = True) -> Ints:
        refused: Ints | None = None
        for number, plugin in self._load[0]:
            refused = merged(refused, number, plugin.refuse(ask, view))
        verdict = base
        for weight, score in self._load[1] if scores else ():
            added = score.score(ask, view)
            if added is not None:
                verdict = verdict + ((weight * added) << SCORE_SHIFT)
        if refused is not None:
            verdict = np.where(refused < 0, refused, verdict)
            if not self._in_order:
                earlier = (base < 0) & (refused < 0) & (base > refused)
                verdict = np.where((base < 0) & (refused < 0) & ~earlier, refused, verdict)
                return np.where((base == ABSENT) | earlier | ((base < 0) & (refused == 0)), base, verdict)
        return np.where(base < 0, base, verdict)

    def _normalise(self, relative: Relative, verdict: Ints) -> None:
        feasible = verdict >= 0
        relative.low, relative.high = extremes(relative.raw, feasible)
        added = relative.normalised(relative.low, relative.high) << SCORE_SHIFT
        np.add(verdict, added, out=verdict, where=feasible)

    def _clusterwide(
        self,
        ask: Ask,
        view: View,
        verdict: Ints,
        relatives: list[Relative],
        *,
        scores: bool = True,
    ) -> Ints:
        """What depends on other nodes and pods, on top of the row verdicts; writes `verdict`."""
        for number, plugin in self._wide[0]:
            refused = merged(None, number, plugin.refuse(ask, view))
            if refused is not None:
                worse = (refused < 0) & ((verdict >= 0) | (verdict < refused)) & (verdict != ABSENT)
                verdict = np.where(worse, refused, verdict)
        if not scores:
            return verdict
        feasible = verdict >= 0
        view.feasible = feasible
        for relative in relatives:
            low, high = extremes(relative.raw, feasible)
            if (low, high) != (relative.low, relative.high):
                change = relative.normalised(low, high)
                change -= relative.normalised(relative.low, relative.high)
                np.add(verdict, change << SCORE_SHIFT, out=verdict, where=feasible)
        for weight, score in self._wide[1]:
            added = score.score(ask, view)
            if added is not None:
                np.add(verdict, (weight * added) << SCORE_SHIFT, out=verdict, where=feasible)
        return verdict


def merged(refused: Ints | None, number: int, codes: Codes | None) -> Ints | None:
    """Adds a plugin's refusals; an earlier plugin's stay."""
    if codes is None:
        return refused
    coded = np.where(codes == 0, 0, -((number << REASON_BITS) | codes))
    return coded if refused is None else np.where(refused == 0, coded, refused)


def extremes(raw: Ints, feasible: Mask) -> tuple[int, int]:
    if not feasible.any():
        return 0, 0
    return (
        int(raw.min(where=feasible, initial=np.iinfo(np.int64).max)),
        int(raw.max(where=feasible, initial=np.iinfo(np.int64).min)),
    )


def decoded(profile: Profile, verdict: int) -> tuple[Filter, int]:
    """The plugin that refused, and the bits of its reasons."""
    number, bits = divmod(-verdict, 1 << REASON_BITS)
    return profile.refusers[number], bits
