"""What kube-controller-manager would do, as far as the embedded API needs it.

A budget's status says how many of its pods may be disrupted, and evictions go by it. A namespace
that is being deleted loses what is in it, and then goes.
"""

import asyncio
import math
from contextlib import suppress

from bayplan.local.api import Api
from bayplan.local.bindings import is_ready, protects
from bayplan.local.kinds import BUDGET, NAMESPACE, POD, Kind
from bayplan.local.objects import Deletion
from bayplan.local.problems import Problem
from bayplan.local.store import Json, Stored


class Controllers:
    def __init__(self, api: Api) -> None:
        self._api, self._store = api, api.store
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        stops = [
            self._store.listen(kind.store, self._changed.set) for kind in (BUDGET, NAMESPACE, POD)
        ]
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self.settle()
        finally:
            for stop in stops:
                stop()

    def settle(self) -> None:
        """Brings everything to where it should be, as far as it can get in one go."""
        for key, stored in self._store.items(BUDGET.store):
            status = self._budget_status(stored.value)
            if status != stored.value.get("status"):
                self._store.put(BUDGET.store, key, {**stored.copy(), "status": status})
        for key, stored in self._store.items(NAMESPACE.store):
            if stored.value["metadata"].get("deletionTimestamp"):
                self._empty(key[1], stored)

    def _budget_status(self, budget: Json) -> Json:
        namespace = budget["metadata"]["namespace"]
        pods = [
            stored.value
            for _, stored in self._store.items(POD.store, namespace)
            if protects(budget, stored.value)
        ]
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        alive = [p for p in alive if p["status"].get("phase") not in ("Succeeded", "Failed")]
        healthy = sum(map(is_ready, alive))
        expected, spec = len(alive), budget["spec"]
        if "maxUnavailable" in spec:
            desired = max(expected - _share(spec["maxUnavailable"], expected), 0)
        else:
            desired = _share(spec.get("minAvailable", 1), expected)
        return {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": max(healthy - desired, 0) if expected else 0,
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
            self._store.remove(NAMESPACE.store, ("", name), value)

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
