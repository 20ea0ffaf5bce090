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
from typing import cast

import numpy as np

from bayplan.core.engine.profile import Profile
from bayplan.core.model.pods import RowKey
from bayplan.core.plugins.hooks import Ask, Facts, Filter, NeedsTerms, Normalise, Reads
from bayplan.core.plugins.node_affinity import named_nodes
from bayplan.core.state.arrays import Codes, Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

ABSENT = int(np.iinfo(np.int64).min)  # the row has no node
REFUSED = -(1 << 62)  # for some reason; no sum of scores lifts it to 0
REASON_BITS = 48
SCORE_SHIFT = 32
RANK_MASK = (1 << 31) - 1
KEPT_BYTES = 512 << 20  # for kept verdicts, all keys together
KEPT_EXTREMES = 8
FEW_NAMED = 16  # a pod pinned to so few nodes is asked on just their rows


class Relative:
    """A static score that is relative to the highest raw value of the feasible rows.

    A row that holds the highest is remembered: while it stays feasible and no row can be higher,
    the value stands without looking at all rows.
    """

    def __init__(self, weight: int, plugin: Normalise, raw: Ints) -> None:
        self.weight = weight
        self.plugin = plugin
        self.raw = raw
        self.most = int(raw.max())  # over all rows
        self.high = -1  # over the feasible rows
        self.high_row = -1
        self._added: dict[int, Ints] = {}  # by highest value

    def stands(self, verdict: Ints) -> bool:
        """Whether the highest value is surely still that of the feasible rows."""
        return self.high == self.most and bool(verdict[self.high_row] >= 0)

    def highest(self, verdict: Ints) -> tuple[int, int]:
        """The highest raw value of the feasible rows, and a row that has it."""
        raw = np.where(verdict >= 0, self.raw, -1)
        row = int(raw.argmax())
        return max(int(raw[row]), 0), row

    def added(self, high: int) -> Ints:
        """What the score adds to a verdict per row."""
        column = self._added.get(high)
        if column is None:
            if len(self._added) >= KEPT_EXTREMES:
                self._added.clear()
            column = (self.weight * self.plugin.normalise(self.raw, high)) << SCORE_SHIFT
            self._added[high] = column
        return column


class Kept:
    """The verdicts of one row key over all rows, and how far they have read the logs.

    Refused rows have some number near REFUSED here; `Verdicts.on` tells why.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.base: Ints = np.zeros(0, dtype=np.int64)  # scores of static plugins
        self.scored: Ints = self.base  # with relative scores, at their present extremes
        self.verdict: Ints = self.base
        self.relatives: list[Relative] = []
        self.constants: tuple[int, ...] = ()  # of relative scores that are equal on all rows
        self.facts: tuple[Hashable, ...] = ()
        self.facts_version = -1
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
        self._last_first = self._load[0][::-1]
        self.by_terms_alone = all(
            isinstance(plugin, NeedsTerms) for _, plugin in (*self._wide[0], *self._wide[1])
        )
        kinds = (self._static, self._load, self._wide)
        numbers = [number for kind in kinds for number, _ in kind[0]]
        self._in_order = numbers == sorted(numbers)
        self._facts = [score for _, score in self._static[1] if isinstance(score, Facts)]
        self._normalised = [
            score if isinstance(score, Normalise) else None for _, score in self._static[1]
        ]
        self._kept: OrderedDict[RowKey, Kept] = OrderedDict()

    # ---- questions

    def best(self, ask: Ask) -> tuple[int, Ints, Rows | None]:
        """The best row or -1, the verdicts, and their rows (None: all)."""
        view = self.narrowed(ask)
        if view is None:
            verdict, rows = self.all_rows(ask), None
        else:
            verdict, rows = self.on(ask, view), view.rows
        at = int(verdict.argmax()) if len(verdict) else -1
        if at < 0 or verdict[at] < 0:
            return -1, verdict, rows
        return (at if rows is None else int(rows[at])), verdict, rows

    def narrowed(self, ask: Ask) -> View | None:
        """A view of the few rows that the pod names, if it does."""
        key = ask.pod.row
        if not key.node_name and not key.required:
            return None
        names = (key.node_name,) if key.node_name else named_nodes(key)
        if not names or len(names) > FEW_NAMED:
            return None
        rows = [row for name in names if (row := self.cluster.rows.get(name)) is not None]
        return View(self.cluster, np.array(rows, dtype=np.intp))

    def all_rows(self, ask: Ask) -> Ints:
        """The verdicts on all rows, from what is kept. Not to be written to."""
        kept = self.kept(ask)
        verdict = kept.verdict[: self.cluster.height]
        if ask.own is None and not ask.concerning and self.by_terms_alone:
            return verdict
        view = View(self.cluster)
        return self._clusterwide(ask, view, verdict.copy(), kept.relatives, exact=False)

    def on(self, ask: Ask, view: View, *, scores: bool = True) -> Ints:
        """The verdicts on a view, computed afresh, with the reasons of refused rows."""
        base, relatives, _ = self._static_part(ask, view, scores=scores)
        verdict = self._load_part(ask, view, base, exact=True, scores=scores)
        verdict = np.where(base < 0, self._earlier(base, verdict), verdict)
        for relative in relatives:
            relative.high, relative.high_row = relative.highest(verdict)
            verdict += relative.added(relative.high) * (verdict >= 0)
        if ask.own is None and not ask.concerning and self.by_terms_alone:
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
        if (
            kept.static_position != cluster.static_log.head
            or kept.facts_version != cluster.facts_version
        ):
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
        kept.facts_version = cluster.facts_version
        facts = tuple(plugin.facts(kept.ask, cluster) for plugin in self._facts)
        head = cluster.static_log.head
        moved = kept.static_position != head
        if not moved and facts == kept.facts:
            return
        rows = cluster.static_log.since(kept.static_position) if kept.static_position >= 0 else None
        whole = rows is None or len(rows) > cluster.height // 8 or bool(kept.relatives)
        whole = whole or facts != kept.facts or len(kept.base) != len(cluster.nodes)
        if whole or not self._static_rows(kept, rows):
            base, relatives, kept.constants = self._static_part(kept.ask, View(cluster))
            kept.base = self._whole(np.where(base < 0, REFUSED, base))
            kept.relatives = relatives
            kept.load_position = -1
        kept.facts = facts
        kept.static_position = head

    def _static_rows(self, kept: Kept, rows: Rows | None) -> bool:
        """Asks the static plugins again about a few rows; False when that is not enough."""
        assert rows is not None
        base, relatives, constants = self._static_part(kept.ask, View(self.cluster, rows))
        if relatives or (constants != kept.constants and len(rows)):
            return False
        kept.base[rows] = np.where(base < 0, REFUSED, base)
        return True

    def _load_all(self, kept: Kept) -> None:
        view = View(self.cluster)
        kept.scored = kept.base
        kept.verdict = self._whole(self._load_part(kept.ask, view, kept.base[: view.size]))
        if kept.relatives:
            kept.scored = kept.base.copy()
            for relative in kept.relatives:
                relative.high, relative.high_row = relative.highest(kept.verdict[: view.size])
                self._shift(kept, relative.added(relative.high))

    def _load_rows(self, kept: Kept, rows: Rows) -> None:
        view = View(self.cluster, rows)
        kept.verdict[rows] = self._load_part(kept.ask, view, kept.scored[rows])
        for relative in kept.relatives:
            if relative.stands(kept.verdict):
                continue
            before = relative.high
            relative.high, relative.high_row = relative.highest(kept.verdict[: self.cluster.height])
            if relative.high != before:
                self._shift(kept, relative.added(relative.high) - relative.added(before))

    def _shift(self, kept: Kept, change: Ints) -> None:
        """A relative score changed on all rows."""
        kept.scored[: len(change)] += change
        kept.verdict[: len(change)] += change

    def _whole(self, column: Ints) -> Ints:
        """The column with room for rows to come."""
        whole = np.full(len(self.cluster.nodes), REFUSED)
        whole[: len(column)] = column
        return whole

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
        asked = zip(self._static[1], self._normalised, strict=True) if scores else ()
        for (weight, score), relative in asked:
            raw = score.score(ask, view)
            if raw is None or not len(raw):
                continue
            if relative is not None:
                low, high = int(raw.min()), int(raw.max())
                if low != high:
                    relatives.append(Relative(weight, relative, raw))
                    continue
                constants.append(low)
                raw = relative.normalise(raw, high)
            total = weight * raw if total is None else total + weight * raw
        base = self._ranks(view) if scores else np.zeros(len(view), dtype=np.int64)
        if total is not None:
            base += total << SCORE_SHIFT
        if refused is not None:
            base = np.where(refused < 0, refused, base)
        return np.where(view.alive, base, ABSENT), relatives, tuple(constants)

    def _ranks(self, view: View) -> Ints:
        """The tie-break: larger is better; constant for a node's life."""
        mixed = (view.hashes ^ self._seed) * np.uint32(2654435761)
        return (mixed >> np.uint32(1)).astype(np.int64)

    def _load_part(
        self, ask: Ask, view: View, base: Ints, *, exact: bool = False, scores: bool = True
    ) -> Ints:
        """`base` with the scores of load plugins, or their refusals.

        Only `exact` verdicts tell why a row was refused, and of what `base` refuses they are not.
        """
        total: Ints | None = None
        for weight, score in self._load[1] if scores else ():
            added = score.score(ask, view)
            if added is not None:
                if weight != 1:
                    added = weight * added
                total = added if total is None else total + added
        verdict = base.copy() if total is None else base + (total << SCORE_SHIFT)
        for number, plugin in self._last_first:
            codes = plugin.refuse(ask, view)
            if codes is not None:
                put(verdict, codes, coded(number, codes) if exact else REFUSED)
        return verdict

    def _earlier(self, base: Ints, verdict: Ints) -> Ints:
        """For rows that static plugins refuse: the refusal of the earlier plugin."""
        if self._in_order:
            return base
        lifted = verdict > base  # a load plugin's refusal of a smaller number, or a mere score
        known = -verdict >> REASON_BITS < len(self.profile.refusers)
        return np.where((base != ABSENT) & (verdict < 0) & lifted & known, verdict, base)

    def _clusterwide(
        self,
        ask: Ask,
        view: View,
        verdict: Ints,
        relatives: list[Relative],
        *,
        exact: bool = True,
        scores: bool = True,
    ) -> Ints:
        """What depends on other nodes and pods, on top of the row verdicts; writes `verdict`.

        Only `exact` verdicts tell why a row was refused.
        """
        for number, plugin in self._wide[0]:
            codes = plugin.refuse(ask, view)
            if codes is None:
                continue
            if not exact:
                put(verdict, codes, REFUSED)
                continue
            refused = coded(number, codes)
            worse = (codes > 0) & ((verdict >= 0) | (verdict < refused)) & (verdict != ABSENT)
            verdict = np.where(worse, refused, verdict)
        if not scores:
            return verdict
        feasible = verdict >= 0
        view.feasible = feasible
        for relative in relatives:
            if relative.stands(verdict):
                continue
            high, _ = relative.highest(verdict)
            if high != relative.high:
                change = relative.added(high) - relative.added(relative.high)
                verdict += change if not exact else change * feasible
        for weight, score in self._wide[1]:
            added = score.score(ask, view)
            if added is not None:
                added = (weight * added) << SCORE_SHIFT
                verdict += added if not exact else added * feasible
        return verdict


def put(verdict: Ints, codes: Codes, refused: Ints | int) -> None:
    """Writes the refusal where a plugin refuses."""
    np.putmask(verdict, cast(Mask, codes), refused)  # any code but 0 counts as true


def merged(refused: Ints | None, number: int, codes: Codes | None) -> Ints | None:
    """Adds a plugin's refusals; an earlier plugin's stay. 0 stands for no refusal."""
    if codes is None or not codes.any():
        return refused
    ours = np.where(codes > 0, coded(number, codes), 0)
    return ours if refused is None else np.where(refused == 0, ours, refused)


def coded(number: int, codes: Codes) -> Ints:
    """A plugin's codes as verdicts below 0."""
    return -(number << REASON_BITS) - codes.astype(np.int64, copy=False)


def decoded(profile: Profile, verdict: int) -> tuple[Filter, int]:
    """The plugin that refused, and the bits of its reasons."""
    number, bits = divmod(-verdict, 1 << REASON_BITS)
    return profile.refusers[number], bits
