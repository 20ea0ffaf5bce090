"""What kube-controller-manager would do, as far as the embedded API needs it.

A budget's status says how many of its pods may be disrupted, and evictions go by it. A namespace
that is being deleted loses what is in it, and then goes. A claim or volume that is being deleted
goes when nobody uses it.
"""

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bayplan.local.api import Api
from bayplan.local.bindings import allowed, is_ready, protected
from bayplan.local.defaults import PROTECTION
from bayplan.local.kinds import BUDGET, CLAIM, NAMESPACE, POD, VOLUME, Kind
from bayplan.local.objects import Deletion, Write
from bayplan.local.pods import has_ended
from bayplan.local.problems import Problem
from bayplan.local.store import Json, Key, Stored

log = logging.getLogger("bayplan.local")

_MOMENT_S = 0.05
_WATCHED = (BUDGET, NAMESPACE, POD, CLAIM, VOLUME)


class Controllers:
    def __init__(self, api: Api) -> None:
        self._api, self._store, self._clock = api, api.store, api.clock
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. What happens within a moment is looked at together."""
        stops = [self._store.listen(kind.store, self._changed.set) for kind in _WATCHED]
        try:
            while True:
                await self._changed.wait()
                await self._clock.sleep(_MOMENT_S)
                self._changed.clear()
                self.settle()
        finally:
            for stop in stops:
                stop()

    def settle(self) -> None:
        """Brings everything to where it should be, as far as it can get in one go."""
        budgets: dict[str, list[tuple[Key, Stored]]] = {}
        for key, stored in self._store.items(BUDGET.store):
            budgets.setdefault(key[0], []).append((key, stored))
        for namespace, here in budgets.items():
            pods = [found.value for _, found in self._store.items(POD.store, namespace)]
            for key, stored in here:
                with self._kept_going(BUDGET, key):
                    self._count(key, stored, pods)
        for kind in (CLAIM, VOLUME):
            for key, stored in self._store.items(kind.store):
                with self._kept_going(kind, key):
                    self._release(kind, key, stored)
        for key, stored in self._store.items(NAMESPACE.store):
            if stored.value["metadata"].get("deletionTimestamp"):
                with self._kept_going(NAMESPACE, key):
                    self._empty(key[1], stored)

    @contextmanager
    def _kept_going(self, kind: Kind, key: Key) -> Iterator[None]:
        """One odd object must not keep the others from their turn."""
        try:
            yield
        except Exception:
            log.exception("%s %s cannot be settled", kind.kind, "/".join(filter(None, key)))

    def _count(self, key: Key, stored: Stored, pods: list[Json]) -> None:
        status = self._budget_status(stored.value, pods)
        if status != stored.value.get("status"):
            self._store.put(BUDGET.store, key, {**stored.copy(), "status": status})

    def _release(self, kind: Kind, key: Key, stored: Stored) -> None:
        """Takes away what protects a claim or volume while it is in use."""
        held = PROTECTION[kind.kind]
        about = stored.value["metadata"]
        if not about.get("deletionTimestamp") or held not in (about.get("finalizers") or ()):
            return
        if kind == VOLUME and (stored.value.get("status") or {}).get("phase") == "Bound":
            return
        if kind == CLAIM and self._is_mounted(key):
            return

        def let_go(value: Json) -> Json:
            left = [name for name in value["metadata"]["finalizers"] if name != held]
            value["metadata"]["finalizers"] = left
            return value

        self._api.objects.update(kind, key, let_go, Write())

    def _is_mounted(self, claim: Key) -> bool:
        for _, stored in self._store.items(POD.store, claim[0]):
            if has_ended(stored.value):
                continue
            for volume in stored.value["spec"].get("volumes") or ():
                if (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim[1]:
                    return True
        return False

    def _budget_status(self, budget: Json, pods: list[Json]) -> Json:
        alive = [
            pod
            for pod in protected(budget, pods)
            if not pod["metadata"].get("deletionTimestamp") and not has_ended(pod)
        ]
        healthy = sum(map(is_ready, alive))
        expected, spec = len(alive), budget["spec"]
        if "maxUnavailable" in spec:
            desired = max(expected - _share(spec["maxUnavailable"], expected), 0)
        else:
            desired = _share(spec.get("minAvailable", 1), expected)
        spare = max(healthy - desired, 0) if expected else 0
        return {
            "conditions": allowed(budget, spare, self._api.objects.now()),
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": spare,
            "expectedPods": expected,
            "observedGeneration": budget["metadata"].get("generation", 1),
        }

    def _empty(self, name: str, stored: Stored) -> None:
        kinds = {kind.store: kind for kind in self._api.kinds if kind.namespaced}
        left = 0
        for kind in kinds.values():
            left += self._empty_of(kind, name)
        if left == 0:
            value = stored.copy()
            value["spec"] = {"finalizers": []}
            if not value["metadata"].get("finalizers"):
                self._store.remove(NAMESPACE.store, ("", name), value)
            elif value != stored.value:
                self._store.put(NAMESPACE.store, ("", name), value)

    def _empty_of(self, kind: Kind, namespace: str) -> int:
        """How many are left: pods that end first, and what has finalizers."""
        for key, stored in self._store.items(kind.store, namespace):
            if not stored.value["metadata"].get("deletionTimestamp"):
                with suppress(Problem):
                    self._api.objects.delete(kind, key, Deletion())
        return len(self._store.items(kind.store, namespace))


def _share(given: int | str, of: int) -> int:
    """A count, or a percentage, rounded up as the disruption controller does."""
    if isinstance(given, str) and given.endswith("%"):
        return math.ceil(of * int(given[:-1]) / 100)
    return int(given)
