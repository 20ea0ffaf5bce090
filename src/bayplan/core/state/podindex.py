"""Placed pods by label, for the label keys that a selector has named.

A new term must count the pods that are already there; this finds them without reading every pod.
Labels that no selector names, such as an index of its own on every pod, cost nothing.
"""

from collections.abc import Iterable, Mapping

from bayplan.core.model.pods import Pod
from bayplan.core.model.selectors import Selector

MAX_KEYS = 64  # beyond this, a selector over a new key reads every pod


class PodIndex:
    """Uids by label, for the keys that were asked for."""

    NOT_STATE = ("keys",)  # derived on demand

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, dict[str, None]]] = {}  # label key → value → uids

    def add(self, pod: Pod) -> None:
        for key, values in self.keys.items():
            value = pod.labels.get(key)
            if value is not None:
                holders = values.get(value)
                if holders is None:
                    holders = values[value] = {}
                holders[pod.uid] = None

    def remove(self, pod: Pod) -> None:
        for key, values in self.keys.items():
            value = pod.labels.get(key)
            if value is not None:
                holders = values[value]
                del holders[pod.uid]
                if not holders:
                    del values[value]

    def candidates(self, selector: Selector | None, pods: Mapping[str, object]) -> Iterable[str]:
        """Uids of the pods that may match; all of them where no label narrows it down."""
        if selector is None:
            return ()
        for requirement in selector.requirements:
            if requirement.op == "In" and self._indexed(requirement.key, pods):
                values = self.keys[requirement.key]
                return [uid for v in requirement.values for uid in values.get(v, ())]
        return list(pods)

    def _indexed(self, key: str, pods: Mapping[str, object]) -> bool:
        if key not in self.keys and len(self.keys) < MAX_KEYS:
            values: dict[str, dict[str, None]] = {}
            for uid, resident in pods.items():
                value = resident.pod.labels.get(key)  # type: ignore[attr-defined]
                if value is not None:
                    values.setdefault(value, {})[uid] = None
            self.keys[key] = values
        return key in self.keys
