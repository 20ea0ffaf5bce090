"""What a pod asks of its node in all: containers, init containers, sidecars, overhead, resizes.

The arithmetic is that of Kubernetes' `PodRequests`, over exact amounts (see `quantity`). Nothing
here knows how a pod is written down.
"""

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.model.quantity import counted
from bayplan.core.model.selectors import is_label_key

Amounts = Mapping[str, int]  # resource name to billionths of a unit

MAX_RESOURCES = 40  # per pod; Kubernetes has no bound, real pods have below ten

# kube-scheduler's DefaultMilliCPURequest and DefaultMemoryRequest, for scores only.
DEFAULT_CPU, DEFAULT_MEMORY = 100 * 10**6, 200 * 2**20 * 10**9
DEFAULTS: Amounts = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}


class TooManyResources(ValueError):
    """A pod asks for more kinds of resources than are kept per pod."""


class Ask(Struct, frozen=True):
    """What a container, or the pod as a whole, asks for, and what its node has given it."""

    requests: Amounts = {}
    restartable: bool = False  # an init container that stays: a sidecar
    actuated: Amounts | None = None  # status.resources; None: the node has not said
    allocated: Amounts = {}

    def effective(self, infeasible: bool) -> Amounts:
        """The request while a resize may be under way: the most of what is asked and given."""
        if self.actuated is None:
            return self.requests
        result = {} if infeasible else dict(self.requests)
        _raise(result, self.actuated)
        _raise(result, self.allocated)
        return result


class PodAsk(Struct, frozen=True):
    containers: tuple[Ask, ...] = ()
    init_containers: tuple[Ask, ...] = ()
    whole: Ask = Ask()  # pod-level resources
    overhead: Amounts = {}
    infeasible: bool = False  # the node has refused the pending resize


class Asked(Struct, frozen=True):
    """The figures that a RowKey holds."""

    requests: tuple[tuple[str, int], ...]
    scored: tuple[tuple[str, int], ...]
    scored_placed: tuple[int, int]


@lru_cache(maxsize=4096)
def is_counted(name: str) -> bool:
    """Whether the scheduler looks at requests for this resource; "pods" is not requested."""
    if name in ("cpu", "memory", "ephemeral-storage"):
        return True
    if name.startswith(("hugepages-", "attachable-volumes-")) or "kubernetes.io/" in name:
        return True
    return "/" in name and not name.startswith("requests.") and is_label_key(f"requests.{name}")


def asked(pod: PodAsk, bound: bool) -> Asked:
    """What the scheduler makes of a pod. One that is not bound is taken by its spec alone."""
    exact = total(pod, use_status=bound)
    amounts = ((name, counted(name, nano)) for name, nano in exact.items() if is_counted(name))
    requests = tuple(sorted((name, amount) for name, amount in amounts if amount))
    if len(requests) > MAX_RESOURCES:
        raise TooManyResources(f"{len(requests)} kinds of resources; {MAX_RESOURCES} at most")
    # kube-scheduler's NodeResourcesFit scores a newcomer by its containers, without pod-level
    # resources and resizes, though it filters with them.
    scored = total(replace(pod, whole=Ask()), use_status=False, defaults=DEFAULTS)
    placed = total(pod, use_status=True, defaults=DEFAULTS)
    if any(map(_is_pod_level, pod.whole.requests)):
        present = exact if bound else total(pod, use_status=True)
        missing = {name: nano for name, nano in DEFAULTS.items() if name not in present}
        placed = total(pod, use_status=True, defaults=missing)
    figures = tuple(sorted((n, counted(n, nano)) for n, nano in scored.items() if is_counted(n)))
    return Asked(requests, figures, _cpu_and_memory(placed))


def total(pod: PodAsk, use_status: bool, defaults: Amounts | None = None) -> dict[str, int]:
    """The pod's requests; containers that say nothing about a resource get its default."""

    def amounts_of(container: Ask, resizable: bool) -> Amounts:
        resized = use_status and resizable
        own = container.effective(pod.infeasible) if resized else container.requests
        return {**defaults, **own} if defaults else own

    result: dict[str, int] = {}
    for container in pod.containers:
        _add(result, amounts_of(container, resizable=True))
    sidecars: dict[str, int] = {}  # those that have started so far
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        amounts = amounts_of(container, resizable=container.restartable)
        if container.restartable:
            _add(result, amounts)
            _add(sidecars, amounts)
            _raise(peak, sidecars)
        else:
            running = dict(amounts)
            _add(running, sidecars)
            _raise(peak, running)
    _raise(result, peak)
    whole = pod.whole.effective(pod.infeasible) if use_status else pod.whole.requests
    for name in pod.whole.requests:
        if _is_pod_level(name):
            result[name] = whole.get(name, 0)
    _add(result, pod.overhead)
    return result


def _is_pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _cpu_and_memory(amounts: Amounts) -> tuple[int, int]:
    return counted("cpu", amounts.get("cpu", 0)), counted("memory", amounts.get("memory", 0))


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, nano in more.items():
        total[name] = total.get(name, 0) + nano


def _raise(total: dict[str, int], other: Amounts) -> None:
    for name, nano in other.items():
        if name not in total or nano > total[name]:
            total[name] = nano
