"""Random cases about persistent volumes: claims in every state, volumes, classes, and changes.

Left out is what Bayplan does not do, or does otherwise (docs/kube-scheduler.md): volumes that wait
to be chosen, storage capacities, and unbound claims that a placed pod uses.
"""

import random
from typing import Any

from tests.oracle import cases
from tests.oracle.cases import HOST, ZONE

Json = dict[str, Any]

REGION = "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
OLD_REGION = "failure-domain.beta.kubernetes.io/region"
ZONES = ("z1", "z2", "z3")
CLAIMS, VOLUMES = ("c0", "c1", "c2"), ("v0", "v1", "v2")
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
POD_UID = "uid-new"
KINDS = ("persistentvolumeclaims", "persistentvolumes", "storageclasses")


class Volumes:
    """Makes the objects of a case, and changes them."""

    def __init__(self, rng: random.Random, case: Json) -> None:
        self.rng, self.case = rng, case
        self.namespace: str = case["pod"]["metadata"]["namespace"]
        self.ephemeral = f"{case['pod']['metadata']['name']}-scratch"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def claim(self, name: str) -> Json:
        rng = self.rng
        notes: dict[str, str] = {}
        metadata: Json = {"name": name, "namespace": self.namespace, "uid": f"uid-{name}"}
        spec: Json = {"accessModes": [rng.choice(("ReadWriteOnce", "ReadWriteMany"))]}
        if self.chance(0.2):
            spec["accessModes"] = ["ReadWriteOncePod"]
        state = rng.choices(("bound", "half", "waits", "now", "none"), (55, 4, 35, 4, 2))[0]
        if state in ("bound", "half"):
            missing = name == self.ephemeral and self.chance(0.25)
            spec["volumeName"] = "gone" if missing else rng.choice(VOLUMES)
        if state == "bound":
            notes[BIND_COMPLETED] = "yes"
        wanted = {"waits": rng.choice(("waits", "waits", "zoned", "local")), "now": "now"}
        class_name = rng.choice((wanted.get(state, ""),) * 29 + ("unknown",))
        if class_name and self.chance(0.1):
            notes[OLD_CLASS] = class_name
            spec["storageClassName"] = "ignored"
        elif class_name:
            spec["storageClassName"] = class_name
        if state != "bound" and self.chance(0.35):
            nodes = [node["metadata"]["name"] for node in self.case["nodes"]]
            notes[SELECTED_NODE] = rng.choice((*nodes, *nodes, "nowhere", ""))
        if notes:
            metadata["annotations"] = notes
        deleting = self.chance(0.03)
        if deleting:
            metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        if name == self.ephemeral and self.chance(0.9):
            owner = {"kind": "Pod", "name": "x", "uid": rng.choice((POD_UID,) * 8 + ("other",))}
            metadata["ownerReferences"] = [{**owner, "controller": self.chance(0.95)}]
        phase = (
            "Lost"
            if self.chance(0.4 if deleting else 0.03)
            else "Bound"
            if state == "bound"
            else "Pending"
        )
        return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}

    def volume(self, name: str) -> Json:
        metadata: Json = {"name": name, "labels": {}}
        spec: Json = {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "elsewhere", "name": "other", "uid": "uid-other"},
        }
        roll = self.rng.random()
        if roll < 0.6:
            terms = [self._term() for _ in range(self.rng.choice((0, 1, 1, 1, 1, 2)))]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        elif roll < 0.7:
            spec["nodeAffinity"] = {}
        if self.chance(0.4):
            for label in self.rng.sample(
                (ZONE, REGION, OLD_ZONE, OLD_REGION), self.rng.choice((1, 2))
            ):
                metadata["labels"][label] = self.rng.choice(
                    (*ZONES, "z1__z2", "z2__ z3", "z1__", "")
                )
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}

    def _term(self) -> Json:
        hosts = [node["metadata"]["name"] for node in self.case["nodes"]]
        some = self.rng.sample(hosts, self.rng.randint(1, len(hosts)))
        term: Json = self.rng.choice(
            (
                {"matchExpressions": [{"key": HOST, "operator": "In", "values": some}]},
                {"matchExpressions": [{"key": HOST, "operator": "In", "values": some}]},
                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1", "z2"]}]},
                {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["z1"]}]},
                {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["1"]}]},
                {"matchExpressions": [{"key": "no key", "operator": "In", "values": ["x"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": some[:1]}]},
                {
                    "matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": some[:1]}
                    ]
                },
                {},
            )
        )
        return term

    def storage_class(self, name: str) -> Json:
        made: Json = {
            "metadata": {"name": name},
            "provisioner": "csi.example",
            "volumeBindingMode": "Immediate" if name == "now" else "WaitForFirstConsumer",
        }
        if name == "local":
            made["provisioner"] = self.rng.choice(("kubernetes.io/no-provisioner", ""))
        if name == "zoned":
            wanted = [{"key": ZONE, "values": self.rng.sample(ZONES, self.rng.randint(1, 2))}]
            terms: list[Json] = [{"matchLabelExpressions": wanted}]
            terms += [{}] if self.chance(0.2) else []
            terms += [{"matchLabelExpressions": [{"key": "rack", "values": ["r1"]}]}] * self.chance(
                0.3
            )
            made["allowedTopologies"] = terms
        return made

    def fill(self) -> None:
        """Adds volumes to the newcomer and to some of the others, and the objects behind them."""
        rng, case = self.rng, self.case
        case["pod"]["metadata"]["uid"] = POD_UID
        for node in case["nodes"]:
            labels = node["metadata"].setdefault("labels", {})
            for label in (ZONE, REGION, OLD_ZONE):
                if self.chance(0.3):
                    labels[label] = rng.choice(ZONES)
        used = rng.sample(CLAIMS, rng.choice((1, 1, 1, 2, 2, 3)))
        volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in used]
        if self.chance(0.25):
            volumes.insert(rng.randint(0, len(volumes)), {"name": "scratch", "ephemeral": {}})
        case["pod"]["spec"].setdefault("volumes", []).extend(volumes)
        names = [n for n in (*CLAIMS, self.ephemeral) if not self.chance(0.04)]
        case[KINDS[0]] = [self.claim(name) for name in names]
        case[KINDS[1]] = [self.volume(name) for name in VOLUMES if not self.chance(0.04)]
        classes = ("waits", "zoned", "local", "now")
        case[KINDS[2]] = [self.storage_class(n) for n in classes if not self.chance(0.03)]
        for pod in case["pods"]:
            if self.chance(0.15):
                self.use(pod)

    def use(self, pod: Json) -> None:
        """The pod uses a claim that has its volume."""
        bound = [c["metadata"]["name"] for c in self.case[KINDS[0]] if is_bound(c)]
        if bound:
            if self.chance(0.7):
                pod["metadata"]["namespace"] = self.namespace
            source = {"claimName": self.rng.choice(bound)}
            volume = {"name": "data", "persistentVolumeClaim": source}
            pod["spec"]["volumes"] = [*pod["spec"].get("volumes", []), volume]

    def alter(self) -> tuple[str, str, Json | None]:
        """One claim, volume or class is seen as something else, or goes: kind, name, object."""
        kind = self.rng.choices(KINDS, (5, 4, 2))[0]
        make = {KINDS[0]: self.claim, KINDS[1]: self.volume, KINDS[2]: self.storage_class}[kind]
        names = {
            KINDS[0]: (*CLAIMS, self.ephemeral),
            KINDS[1]: VOLUMES,
            KINDS[2]: ("waits", "zoned", "local", "now"),
        }[kind]
        name = self.rng.choice(names)
        new = None if self.chance(0.12) else make(name)
        if kind == KINDS[0] and self._used(name) and (new is None or not is_bound(new)):
            return self.alter()
        kept = [each for each in self.case[kind] if each["metadata"]["name"] != name]
        if new is None and len(kept) == len(self.case[kind]):
            return self.alter()  # it was not there
        self.case[kind] = kept if new is None else [*kept, new]
        return kind, name, new

    def _used(self, claim: str) -> bool:
        return any(
            volume.get("persistentVolumeClaim", {}).get("claimName") == claim
            for pod in self.case["pods"]
            for volume in pod["spec"].get("volumes", ())
        )


def is_bound(claim: Json) -> bool:
    notes = claim["metadata"].get("annotations", {})
    return "volumeName" in claim["spec"] and BIND_COMPLETED in notes


def volume_case(rng: random.Random) -> Json:
    case = cases.plain_case(rng) if rng.random() < 0.8 else cases.case(rng)
    Volumes(rng, case).fill()
    return case
