"""Verdicts: one number per row that says whether a pod fits there, and how well.

At least 0: it fits; the weighted score stands in the upper half and the tie-break in the lower, so
the best row is the largest number. Below 0: it does not; the number is the refusing plugin and its
reasons. Verdicts of static and load plugins are kept per row key and follow the change logs: the
rows that changed are asked again through the same plugins. What other pods' labels decide is
computed on top, for the few pods that it concerns.
"""

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine.kept import (
    REFUSED,
    SCORE_BITS,
    SCORE_SHIFT,
    Kept,
    Relative,
    prepared,
    with_scores,
)
from bayplan.core.engine.profile import Profile
from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins.hooks import (
    Ask,
    Facts,
    Filter,
    IgnoresLabels,
    NeedsClaims,
    NeedsTerms,
    Normalise,
    Reads,
    Reject,
    Score,
    Scorer,
    Skips,
)
from bayplan.core.plugins.node_affinity import named_nodes
from bayplan.core.state.arrays import Codes, Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

ABSENT = int(np.iinfo(np.int64).min)  # the row has no node
REASON_BITS = 48
RANK_MASK = (1 << 31) - 1
KEPT_BYTES = 512 << 20  # for the kept verdicts of a profile
BYTES_PER_ROW = 64  # base, scored, verdict, and a relative score's raw values and sums
FEW_NAMED = 16  # a pod pinned to so few nodes is asked on just their rows


class Wide(Struct, frozen=True):
    """The plugins that look at more than the node, as far as they have a say about a pod."""

    rejects: list[Reject]
    filters: list[Filter]
    scores: list[tuple[int, Score]]
    skips: list[Skips] | None  # the same; None unless each may have no score for a pod
    # With those that look at the node alone, by number and in the profile's order:
    every: list[tuple[int, Filter]]

    def skip(self, ask: Ask) -> bool:
        """Whether none of them has a score for the pod."""
        return self.skips is not None and all(each.skips(ask) for each in self.skips)


class Verdicts:
    """Asks a profile's plugins, and keeps what they said."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self.cluster = cluster
        self.profile = profile
        self._seed = np.uint32(zlib.crc32(profile.name.encode()))
        self._static = profile.of_kind(Reads.STATIC)
        self._load = profile.of_kind(Reads.LOAD)
        wide_filters, wide_scores = profile.of_kind(Reads.CLUSTER)
        wide = [plugin for _, plugin in (*wide_filters, *wide_scores)]
        self.by_terms_alone = all(is_by_terms(plugin) for plugin in wide)
        self.ignores_labels = all(
            is_by_terms(plugin) or (isinstance(plugin, IgnoresLabels) and plugin.ignores_labels)
            for plugin in wide
        )
        self._static_rejects = [each for _, each in profile.rejects if is_static(each)]
        wide_rejects = [each for _, each in profile.rejects if not is_static(each)]
        self._wide: dict[tuple[bool, bool], Wide] = {}
        for terms in (False, True):
            for claims in (False, True):
                scores = [each for each in wide_scores if has_part(each[1], terms, claims)]
                skips: list[Skips] = [each for _, each in scores if isinstance(each, Skips)]
                self._wide[terms, claims] = Wide(
                    [each for each in wide_rejects if has_part(each, terms, claims)],
                    [each for _, each in wide_filters if has_part(each, terms, claims)],
                    scores,
                    skips if len(skips) == len(scores) else None,
                    [
                        each
                        for each in profile.filters
                        if each[1].reads is not Reads.CLUSTER or has_part(each[1], terms, claims)
                    ],
                )
        asked = dict.fromkeys(plugin for _, plugin in (*self._static[0], *self._static[1]))
        self._facts = [plugin for plugin in asked if isinstance(plugin, Facts)]
        names = {plugin.name for _, plugin in profile.filters}
        self._by_name, self._by_affinity = "NodeName" in names, "NodeAffinity" in names
        self._normalised = [
            score if isinstance(score, Normalise) else None for _, score in self._static[1]
        ]
        self._kept: OrderedDict[RowKey, Kept] = OrderedDict()

    # ---- questions

    def best(self, ask: Ask, *, keep: bool = True) -> tuple[int, Ints, Rows | None]:
        """The best row or -1, the verdicts, and their rows (None: all).

        Without `keep`, a row key that is not kept yet is asked afresh and leaves nothing behind.
        """
        key = ask.pod.row
        view = self.narrowed(ask) if key.node_name or key.required else None
        if view is None and (keep or key.plain in self._kept):
            verdict, rows = self.all_rows(ask)
        else:
            verdict, rows = self._passing(ask, View(self.cluster) if view is None else view)
        at = int(verdict.argmax()) if len(verdict) else -1
        if at < 0 or verdict.item(at) < 0:
            return -1, verdict, rows
        return (at if rows is None else int(rows[at])), verdict, rows

    def narrowed(self, ask: Ask) -> View | None:
        """A view of the few rows that the pod names, if it does."""
        key = ask.pod.row
        names: tuple[str, ...] | None = None
        if key.node_name and self._by_name:
            names = (key.node_name,)
        elif key.required and self._by_affinity:
            names = named_nodes(key)
        if not names or len(names) > FEW_NAMED:
            return None
        rows = [row for name in names if (row := self.cluster.rows.get(name)) is not None]
        return View(self.cluster, np.array(rows, dtype=np.intp))

    def all_rows(self, ask: Ask) -> tuple[Ints, Rows | None]:
        """The verdicts on all rows, from what is kept; or only on those that pass, where these are
        held against each other. Not to be written to."""
        kept = self.kept(ask)
        verdict = kept.verdict[: self.cluster.height]
        if not self.is_wide(ask):
            return verdict, None
        wide, view = self._wide_for(ask), View(self.cluster)
        if self._rejection(ask, wide.rejects) is not None:
            return np.full(len(verdict), REFUSED), None
        answers = [plugin.refuse(ask, view) for plugin in wide.filters]
        if any(codes is not None for codes in answers):
            verdict = verdict.copy()
            for codes in answers:
                put(verdict, codes)
            for relative in kept.relatives:
                if not relative.stands(verdict):
                    high, _ = relative.highest(verdict)
                    if high != relative.high:
                        verdict += relative.added(high) - relative.added(relative.high)
        if wide.skip(ask):
            return verdict, None
        rows = (verdict >= 0).nonzero()[0]
        if not len(rows):
            return verdict, None
        passed = View(self.cluster, rows)
        return with_wide_scores(wide.scores, ask, passed, verdict.take(rows)), rows

    def on(self, ask: Ask, view: View) -> Ints:
        """The verdicts on a view, computed afresh, with the reasons of refused rows."""
        verdict = self.refusals(ask, view)
        passing = np.flatnonzero(verdict == 0)
        if not len(passing):
            return verdict
        if len(passing) == len(view):
            return self._scored(ask, view)
        rows = passing if view.rows is None else view.rows[passing]
        verdict[passing] = self._scored(ask, View(self.cluster, rows))
        return verdict

    def _passing(self, ask: Ask, view: View) -> tuple[Ints, Rows]:
        """The verdicts of the rows that pass, and these rows."""
        passing = np.flatnonzero(self.passes(ask, view))
        rows = passing if view.rows is None else view.rows[passing]
        if not len(rows) or (len(rows) == 1 and self.profile.picker is None):
            return np.zeros(len(rows), dtype=np.int64), rows  # the best, whatever its score
        return self._scored(ask, View(self.cluster, rows)), rows

    def _scored(self, ask: Ask, view: View) -> Ints:
        """The scores of rows that all pass."""
        verdict, relatives, _ = self._static_scores(ask, view)
        scorers: list[tuple[int, Scorer]] = [
            (weight, partial(each.score, ask)) for weight, each in self._load[1]
        ]
        verdict = with_scores(scorers, view, verdict)
        for relative in relatives:
            verdict += relative.added(relative.most)
        if self.is_wide(ask):
            verdict = with_wide_scores(self._wide_for(ask).scores, ask, view, verdict)
        return verdict

    def refusals(self, ask: Ask, view: View) -> Ints:
        """Per row 0, or a number below 0 for the first refusing plugin and its reasons."""
        view.exact = True
        refused: Ints | None = None
        for number, codes in self._codes(ask, view):
            refused = merged(refused, number, codes)
        if refused is None:
            refused = np.zeros(len(view), dtype=np.int64)
        if view.rows is None and self.cluster.vacant:
            refused = np.where(view.alive, refused, ABSENT)
        return refused

    def refusal(self, ask: Ask, row: int) -> int:
        """The same, of one row."""
        view = View(self.cluster, np.array([row], dtype=np.intp))
        view.exact = True
        for number, codes in self._codes(ask, view):
            if code := int(codes[0]):
                return -(number << REASON_BITS) - code
        return 0

    def passes(self, ask: Ask, view: View) -> Mask:
        """The rows that no plugin refuses, for whatever reason."""
        passed = np.ones(len(view), dtype=np.bool_)
        for _, codes in self._codes(ask, view):
            passed &= codes == 0
        if view.rows is None and self.cluster.vacant:
            passed &= view.alive
        return passed

    def takes(self, ask: Ask, row: int) -> bool:
        """Whether no plugin refuses the row."""
        view = View(self.cluster, np.array([row], dtype=np.intp))
        return not any(codes[0] for _, codes in self._codes(ask, view))

    def _codes(self, ask: Ask, view: View) -> Iterator[tuple[int, Codes]]:
        """What each plugin says that has something to say, by number and in order."""
        for number, rejecter in self.profile.rejects:
            if rejecter.reject(ask, self.cluster) is not None:
                yield number, np.ones(len(view), dtype=np.int8)
                return
        for number, restrict in self.profile.restricts:
            if (codes := restrict.restrict(ask, view)) is not None:
                yield number, codes
        for number, plugin in self._wide_for(ask).every:
            if (codes := plugin.refuse(ask, view)) is not None:
                yield number, codes

    def rejection(self, ask: Ask) -> Reason | None:
        """Why the pod is refused as a whole, whatever the nodes are like."""
        return self._rejection(ask, [each for _, each in self.profile.rejects])

    def _rejection(self, ask: Ask, rejects: list[Reject]) -> Reason | None:
        for rejecter in rejects:
            reason = rejecter.reject(ask, self.cluster)
            if reason is not None:
                return reason
        return None

    def is_wide(self, ask: Ask) -> bool:
        """Whether plugins that look at more than the node have a say."""
        if ask.own is not None or ask.concerning or ask.pod.row.claims:
            return True
        return not self.by_terms_alone

    def _wide_for(self, ask: Ask) -> "Wide":
        terms = ask.own is not None or bool(ask.concerning)
        return self._wide[terms, bool(ask.pod.row.claims)]

    # ---- what is kept

    def kept(self, ask: Ask) -> Kept:
        key = ask.pod.row
        if key.claims:  # mostly one pod's own: they come on top of what is kept for its template
            key = key.plain
        kept = self._kept.get(key)
        if kept is None:
            pod = ask.pod if key is ask.pod.row else replace(ask.pod, row=key)
            plain = Ask(pod, ask.demand)
            kept = self._kept[key] = Kept(plain, prepared(*self._load, plain, self.cluster))
            room = max(8, KEPT_BYTES // (BYTES_PER_ROW * max(1, len(self.cluster.nodes))))
            while len(self._kept) > room:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
            if kept.ask.demand is not ask.demand:  # a resource got its column
                plain = Ask(kept.ask.pod, ask.demand)
                kept.refusers, kept.scorers = prepared(*self._load, plain, self.cluster)
                kept.ask, kept.load_position = plain, -1
        self._refresh(kept)
        return kept

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
            kept.verdict[rows] = kept.load_part(View(cluster, rows), kept.scored.take(rows))
            for relative in kept.relatives:
                if not relative.stands(kept.verdict):
                    self._follow(kept, relative)
        kept.load_position = head

    def _refresh_static(self, kept: Kept) -> None:
        """Brings `base` up to date; rows that it touches are in the load log too."""
        cluster = self.cluster
        facts = tuple([plugin.facts(kept.ask, cluster) for plugin in self._facts])
        head = cluster.static_log.head
        if kept.static_position == head and kept.facts == facts:
            kept.facts_version = cluster.facts_version
            return
        rows = cluster.static_log.since(kept.static_position) if kept.static_position >= 0 else None
        whole = rows is None or len(rows) > cluster.height // 8 or bool(kept.relatives)
        whole = whole or facts != kept.facts or len(kept.base) != len(cluster.nodes)
        if whole or not self._static_rows(kept, rows):
            base, kept.relatives, kept.constants = self._static_part(kept.ask, View(cluster))
            kept.base = self._whole(base)
            kept.load_position = -1
        # Not before: a plugin that fails is asked again.
        kept.facts, kept.facts_version = facts, cluster.facts_version
        kept.static_position = head

    def _static_rows(self, kept: Kept, rows: Rows | None) -> bool:
        """Asks the static plugins again about a few rows; False when that is not enough."""
        assert rows is not None
        base, relatives, constants = self._static_part(kept.ask, View(self.cluster, rows))
        if relatives or (constants != kept.constants and len(rows)):
            return False
        kept.base[rows] = base
        return True

    def _load_all(self, kept: Kept) -> None:
        view = View(self.cluster)
        kept.scored = kept.base
        kept.verdict = self._whole(kept.load_part(view, kept.base[: view.size]))
        if kept.relatives:
            kept.scored = kept.base.copy()
            for relative in kept.relatives:
                relative.high, relative.high_row = relative.highest(kept.verdict[: view.size])
                self._shift(kept, relative.added(relative.high))

    def _follow(self, kept: Kept, relative: Relative) -> None:
        """The highest raw value of the feasible rows may be another now."""
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

    def _static_part(self, ask: Ask, view: View) -> tuple[Ints, list[Relative], tuple[int, ...]]:
        """REFUSED, or what static plugins add, with the tie-break."""
        base, relatives, constants = self._static_scores(ask, view)
        if self._rejection(ask, self._static_rejects) is not None:
            base[:] = REFUSED
            return base, relatives, constants
        for _, restrict in self.profile.restricts:
            put(base, restrict.restrict(ask, view))
        for _, plugin in self._static[0]:
            put(base, plugin.refuse(ask, view))
        np.putmask(base, ~view.alive, REFUSED)
        return base, relatives, constants

    def _static_scores(self, ask: Ask, view: View) -> tuple[Ints, list[Relative], tuple[int, ...]]:
        """What static plugins add, with the tie-break; and scores relative to the feasible rows.

        A relative score that is equal on all rows needs no comparing: it is added at once, and
        its raw value is given back, so that a few rows asked later can be held against it.
        """
        mixed = (view.hashes ^ self._seed) * np.uint32(2654435761)
        total: Ints = (mixed >> np.uint32(1)).astype(np.int64)  # constant for a node's life
        relatives: list[Relative] = []
        constants: list[int] = []
        for (weight, score), relative in zip(self._static[1], self._normalised, strict=True):
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
            total += (weight * raw) << SCORE_SHIFT
        return total, relatives, tuple(constants)


def is_static(plugin: Reject) -> bool:
    return cast(Filter, plugin).reads is Reads.STATIC


def is_by_terms(plugin: object) -> bool:
    """Or by claims, which are part of the row key."""
    return (isinstance(plugin, NeedsTerms) and plugin.needs_terms) or (
        isinstance(plugin, NeedsClaims) and plugin.needs_claims
    )


def has_part(plugin: object, terms: bool, claims: bool) -> bool:
    """Whether a plugin that looks at more than the node has a say about pods that have terms, or
    whom others' terms concern, or that have claims."""
    if not is_by_terms(plugin):
        return True
    by_terms = isinstance(plugin, NeedsTerms) and plugin.needs_terms
    by_claims = isinstance(plugin, NeedsClaims) and plugin.needs_claims
    return (terms and by_terms) or (claims and by_claims)


def with_wide_scores(scores: list[tuple[int, Score]], ask: Ask, view: View, verdict: Ints) -> Ints:
    """`verdict` with the scores of plugins that look at more than the node."""
    found = verdict
    for weight, score in scores:
        added = score.score(ask, view)
        if added is not None:
            found = found + added * (weight << SCORE_BITS)
    return found


def put(verdict: Ints, codes: Codes | None) -> None:
    """Writes REFUSED where a plugin refuses: any code but 0 counts as true."""
    if codes is not None:
        mask: Any = codes
        np.putmask(verdict, mask, REFUSED)


def merged(refused: Ints | None, number: int, codes: Codes) -> Ints | None:
    """Adds a plugin's refusals as numbers below 0; an earlier plugin's stay."""
    if not codes.any():
        return refused
    ours = np.where(codes > 0, -(number << REASON_BITS) - codes.astype(np.int64), 0)
    return ours if refused is None else np.where(refused == 0, ours, refused)


def decoded(profile: Profile, verdict: int) -> tuple[Filter, int]:
    """The plugin that refused, and the bits of its reasons."""
    number, bits = divmod(-verdict, 1 << REASON_BITS)
    return profile.refusers[number], bits


def is_rejection(profile: Profile, verdict: int) -> bool:
    """Whether the verdict refuses the pod as a whole; such plugins have the smallest numbers."""
    return -verdict >> REASON_BITS <= len(profile.rejects)
