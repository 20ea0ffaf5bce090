"""What kube-controller-manager would do, as far as the embedded API needs it.

A budget's status says how many of its pods may be disrupted, and evictions go by it. A namespace
that is being deleted loses what is in it, and then goes. A claim or volume that is being deleted
goes when nobody uses it. StatefulSets, Jobs and what owners leave behind have modules of their own.
"""

import asyncio
import math
from contextlib import suppress

from bayplan.local.api import Api
from bayplan.local.bindings import allowed, is_ready, protected
from bayplan.local.defaults import PROTECTION
from bayplan.local.jobs import Jobs
from bayplan.local.kinds import BUDGET, CLAIM, JOB, NAMESPACE, POD, STATEFUL_SET, VOLUME, Kind
from bayplan.local.objects import Deletion, Write
from bayplan.local.owners import Owners
from bayplan.local.pods import has_ended
from bayplan.local.problems import Problem
from bayplan.local.settling import Due, kept_going
from bayplan.local.statefulsets import StatefulSets
from bayplan.local.store import OWNERS, Json, Key, Stored

_MOMENT_S = 0.05
_WATCHED = (BUDGET, NAMESPACE, POD, CLAIM, VOLUME, STATEFUL_SET, JOB)


class Controllers:
    def __init__(self, api: Api) -> None:
        self._api, self._store, self._clock = api, api.store, api.clock
        self._changed = asyncio.Event()
        self._owners = Owners(api)
        self._sets, self._jobs = StatefulSets(api, self._owners), Jobs(api, self._owners)

    async def run(self) -> None:
        """Until cancelled. What happens within a moment is looked at together."""
        watched = [OWNERS, *(kind.store for kind in _WATCHED)]
        stops = [self._store.listen(kind, self._changed.set) for kind in watched]
        due_s: float | None = None
        try:
            while True:
                with suppress(TimeoutError):
                    async with self._clock.timeout(due_s):
                        await self._changed.wait()
                await self._clock.sleep(_MOMENT_S)
                self._changed.clear()
                due_s = self.settle()
        finally:
            for stop in stops:
                stop()

    def settle(self) -> float | None:
        """Brings everything to where it should be, as far as it can get in one go. In how many
        seconds there is more to do, if nothing happens before.
        """
        self._settle_budgets()
        for kind in (CLAIM, VOLUME):
            for key, stored in self._store.items(kind.store):
                with kept_going(kind, key):
                    self._release(kind, key, stored)
        due = Due()
        self._owners.refresh()
        self._sets.settle(due)
        self._jobs.settle(due)
        self._owners.refresh()
        self._owners.settle()
        for key, stored in self._store.items(NAMESPACE.store):
            if stored.value["metadata"].get("deletionTimestamp"):
                with kept_going(NAMESPACE, key):
                    self._empty(key[1], stored)
        return due.in_s

    def _settle_budgets(self) -> None:
        budgets: dict[str, list[tuple[Key, Stored]]] = {}
        for key, stored in self._store.items(BUDGET.store):
            budgets.setdefault(key[0], []).append((key, stored))
        for namespace, here in budgets.items():
            pods = [found.value for _, found in self._store.items(POD.store, namespace)]
            for key, stored in here:
                with kept_going(BUDGET, key):
                    self._count(key, stored, pods)

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
                    self._api.objects.delete(kind, key, Deletion(policy="Background"))
        return len(self._store.items(kind.store, namespace))


def _share(given: int | str, of: int) -> int:
    """A count, or a percentage, rounded up as the disruption controller does."""
    if isinstance(given, str) and given.endswith("%"):
        return math.ceil(of * int(given[:-1]) / 100)
    return int(given)
