"""The hooks: where a plugin can take part, and how several answers combine.

A plugin is one small class with a `name`. It takes part in every hook whose method it has, and is
checked when a profile is built. All row hooks answer for a whole view at once: the same call
serves every node, a handful of rows that changed, or one.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from bayplan.core.model.devices import Held
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.verdicts import Reason
from bayplan.core.state.arrays import Codes, Ints, Mask, Times
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.demand import Demand
from bayplan.core.state.terms import OwnTerms, Term
from bayplan.core.state.view import View

MAX_SCORE = 100
Refuser = Callable[[View], Codes | None]
Scorer = Callable[[View], Ints | None]


class Reads(Enum):
    """What a plugin's row answers depend on, and so what makes them stale."""

    STATIC = "the node's own labels, taints, name, cordon"
    LOAD = "what pods use on the node"
    CLUSTER = "other nodes and other pods too, claims"


class Ask(Struct, frozen=True):
    """A pod, resolved against the cluster: what plugins are asked about."""

    pod: Pod
    demand: Demand
    own: OwnTerms | None = None  # its own terms
    concerning: tuple[Term, ...] = ()  # terms of placed pods that it matches

    @property
    def row(self) -> RowKey:
        return self.pod.row


class Admit(Protocol):
    """PreEnqueue: a reason to keep the pod out of the queue. The first answer counts."""

    name: str

    def hold(self, pod: Pod) -> str | None: ...


class Order(Protocol):
    """QueueSort: exactly one, the same for all profiles. The smallest key is tried first."""

    name: str

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]: ...

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        """The pod with this key is tried."""

    def left(self, pod: Pod) -> None:
        """The pod waits no more, or will get a new key."""


class Filter(Protocol):
    """PreFilter and Filter: per row a bit set over `reasons`; 0, or None for all rows, passes.

    All must pass; the first refusing plugin in the profile's order gives the reasons.
    """

    name: str
    reads: Reads

    def refuse(self, ask: Ask, view: View) -> Codes | None: ...

    def reasons(self, ask: Ask) -> Sequence[Reason]: ...


@runtime_checkable
class Explains(Protocol):
    """A filter whose codes mean more than a set of its `reasons`, which are then as many as a code
    has bits."""

    def explain(self, ask: Ask, code: int) -> Sequence[Reason]: ...


@runtime_checkable
class Reject(Protocol):
    """PreFilter that refuses the pod as a whole, before any node is looked at.

    The first answer counts, and no node is asked. A static plugin's depends on the row key alone;
    load plugins have none.
    """

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None: ...


@runtime_checkable
class Restrict(Protocol):
    """PreFilter that narrows the search before any filter runs. Bits as in Filter."""

    def restrict(self, ask: Ask, view: View) -> Codes | None: ...


@runtime_checkable
class Hopeless(Protocol):
    """Rows that preemption cannot help although the reasons say that it may."""

    def hopeless(self, ask: Ask, view: View) -> Mask: ...


class Score(Protocol):
    """PreScore and Score: per row 0 to 100, or None to add nothing. Weighted sums decide.

    A cluster plugin is asked about the rows that passed, and no others; if none did, not at all.
    """

    name: str
    reads: Reads

    def score(self, ask: Ask, view: View) -> Ints | None: ...


@runtime_checkable
class Skips(Protocol):
    """PreScore that skips: a cluster plugin that has no score for the pod, whatever the nodes are
    like, is not asked for one. Who overrides `score` overrides this too."""

    def skips(self, ask: Ask) -> bool: ...


@runtime_checkable
class Normalise(Protocol):
    """NormalizeScore, for a static score that is relative to the feasible rows' highest."""

    def normalise(self, raw: Ints, high: int) -> Ints: ...


@runtime_checkable
class NeedsTerms(Protocol):
    """A cluster plugin that has nothing to say about a pod without terms, its own or others'.

    Without this mark, a cluster plugin is asked about every pod, and its answer may depend on
    anything, so that only pods with equal labels share a verdict.
    """

    needs_terms: bool


@runtime_checkable
class NeedsClaims(Protocol):
    """A cluster plugin that has nothing to say about a pod without persistent volume claims.

    What it says about a pod with claims may depend on them, but not on the pod's labels.
    """

    needs_claims: bool


@runtime_checkable
class IgnoresLabels(Protocol):
    """A cluster plugin that refuses by the row key alone, so that pods with other labels share a
    refusal. It is asked about every pod all the same."""

    ignores_labels: bool


@runtime_checkable
class Concerns(Protocol):
    """A load plugin that passes all nodes, and adds no score, for pods with some row keys. Where
    verdicts are kept it is not asked about those."""

    def concerns(self, row: RowKey) -> bool: ...


@runtime_checkable
class PreparesFilter(Protocol):
    """PreFilter of a load plugin: what is the same for all nodes is worked out once for a demand.
    Where verdicts are kept, what it gives is asked instead of `refuse`, for as long as the demand
    is the same: it must refuse the same rows, and need not say why. Who overrides one of the two
    overrides both."""

    def refuser(self, ask: Ask) -> Refuser: ...


@runtime_checkable
class PreparesScore(Protocol):
    """PreScore of a load plugin, likewise: what it gives is asked instead of `score`."""

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer: ...


@runtime_checkable
class Facts(Protocol):
    """What else a static plugin's answers depend on: when it changes, they are computed anew.

    It is asked when the static log has moved, or something that is no row's: the number of nodes,
    images, namespaces, claims, volumes and their classes, budgets, groups, device classes.
    """

    def facts(self, ask: Ask, cluster: Cluster) -> Hashable: ...


class Choose(Protocol):
    """Which devices the pod gets on the node that was chosen. The answers of all are joined."""

    name: str

    def choose(self, ask: Ask, row: int, cluster: Cluster) -> Sequence[Held]: ...


class Reserve(Protocol):
    """Runs on the trial after the pod was placed; a text refuses and drops the trial."""

    name: str

    def reserve(self, ask: Ask, placement: Placement, cluster: Cluster) -> str | None: ...


class Permit(Protocol):
    """May hold a placed pod back. Declared and checked; not called yet."""

    name: str

    def permit(self, placement: Placement, now: float) -> str | None: ...


class Plans(Struct, frozen=True):
    """Nodes where removing pods would help, one entry each, with what that would do."""

    violations: Ints  # victims whose removal breaks a budget
    highest: Ints  # priority of the most important victim
    total: Ints  # sum of the priorities, each counted from the lowest that there can be
    count: Ints  # victims
    start: Times  # when the first of the victims with the highest priority started
    lost_s: Times  # work that is lost: since the start or the last checkpoint, all victims together


class Preempt(Protocol):
    """PostFilter: what to minimise when pods are removed for another, the first column first.

    At most one. Without it nobody is removed.
    """

    name: str

    def order(self, plans: Plans) -> Sequence[Ints | Times]: ...


class Bind(Protocol):
    """The only asynchronous hook; the shell calls it. Declared and checked; not called yet."""

    name: str

    def bind(self, placement: Placement) -> Awaitable[None]: ...


class Candidate(Struct, frozen=True):
    """A node that passed, for a picker."""

    node: str
    score: int
    free: Mapping[str, int]  # by resource, before the pod is there
    labels: Mapping[str, str]


Picker = Callable[[Pod, Sequence[Candidate]], int]

HOOKS: dict[str, str] = {  # extension point: the method that a plugin must have for it
    "admit": "hold",
    "order": "key",
    "filter": "refuse",
    "score": "score",
    "choose": "choose",
    "reserve": "reserve",
    "permit": "permit",
    "preempt": "order",
    "bind": "bind",
}
