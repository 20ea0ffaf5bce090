"""The kinds that the embedded API serves, and how paths, kubectl and objects name them."""

from typing import Any

from msgspec import Struct

ACTIONS = ("binding", "eviction")  # subresources by which something is done to a pod
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Column(Struct, frozen=True):
    name: str
    type: str
    path: tuple[str, ...]  # where its value stands
    priority: int = 0  # above 0: only in wide output


class Kind(Struct, frozen=True):
    group: str  # the core group is ""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    custom: bool = False  # by a CustomResourceDefinition
    columns: tuple["Column", ...] = ()  # that such a definition adds to the name

    @property
    def built_in(self) -> str:
        """Its name among the API server's own kinds; other people's may be called alike."""
        return "" if self.custom else self.kind

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """As error messages name it: pods, leases.coordination.k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def store(self) -> str:
        """Kinds with the same key are the same objects."""
        return "events" if self.built_in == "Event" else self.resource


def _core(plural: str, kind: str, *short: str, **more: object) -> Kind:
    return Kind("", "v1", plural, kind, short=short, **more)  # type: ignore[arg-type]


POD = _core(
    "pods", "Pod", "po", categories=("all",), subresources=("binding", "eviction", "status")
)
NODE = _core("nodes", "Node", "no", namespaced=False, subresources=("status",))
NAMESPACE = _core(
    "namespaces", "Namespace", "ns", namespaced=False, subresources=("finalize", "status")
)
CORE_EVENT = _core("events", "Event", "ev")
CLAIM = _core("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", subresources=("status",))
VOLUME = _core(
    "persistentvolumes", "PersistentVolume", "pv", namespaced=False, subresources=("status",)
)
EVENT = Kind("events.k8s.io", "v1", "events", "Event", short=("ev",))
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
BUDGET = Kind(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    short=("pdb",),
    subresources=("status",),
)
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, short=("pc",)
)
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
STATEFUL_SET = Kind(
    "apps",
    "v1",
    "statefulsets",
    "StatefulSet",
    short=("sts",),
    categories=("all",),
    subresources=("scale", "status"),
)
JOB = Kind("batch", "v1", "jobs", "Job", categories=("all",), subresources=("status",))
DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    short=("crd", "crds"),
    categories=("api-extensions",),
    subresources=("status",),
)

BUILT_IN = (
    POD,
    NODE,
    NAMESPACE,
    CORE_EVENT,
    _core("configmaps", "ConfigMap", "cm"),
    _core("endpoints", "Endpoints", "ep"),
    _core("limitranges", "LimitRange", "limits"),
    CLAIM,
    VOLUME,
    _core("resourcequotas", "ResourceQuota", "quota", subresources=("status",)),
    _core("secrets", "Secret"),
    _core("serviceaccounts", "ServiceAccount", "sa"),
    _core("services", "Service", "svc", categories=("all",), subresources=("status",)),
    EVENT,
    LEASE,
    BUDGET,
    STATEFUL_SET,
    JOB,
    PRIORITY_CLASS,
    RUNTIME_CLASS,
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, short=("sc",)),
    Kind("storage.k8s.io", "v1", "csinodes", "CSINode", False),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False),
    Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", subresources=("status",)),
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    DEFINITION,
)

OWN_GROUPS = frozenset(kind.group for kind in BUILT_IN)

# Kinds that every cluster has and that would do nothing here: no controller would act on them.
UNSUPPORTED = {
    "apps": ("deployments", "replicasets", "daemonsets", "controllerrevisions"),
    "batch": ("cronjobs",),
    "autoscaling": ("horizontalpodautoscalers",),
    "networking.k8s.io": ("ingresses", "networkpolicies", "ingressclasses"),
    "": ("replicationcontrollers", "podtemplates", "componentstatuses"),
}


def custom_kinds(definition: dict[str, Any]) -> list[Kind]:
    """The kinds that a CustomResourceDefinition brings: one for each version that is served.

    The API server's own groups stay as they are, whatever is defined in them.
    """
    spec = definition["spec"]
    names = spec["names"]
    if spec["group"] in OWN_GROUPS:
        return []
    return [
        Kind(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] != "Cluster",
            short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=("status",) if _has_status(version) else (),
            custom=True,
            columns=tuple(map(_column, version.get("additionalPrinterColumns") or ())),
        )
        for version in spec["versions"]
        if version["served"]
    ]


def _has_status(version: dict[str, Any]) -> bool:
    return (version.get("subresources") or {}).get("status") is not None


def _column(given: dict[str, Any]) -> Column:
    """Plain paths such as `.spec.minMember`; what needs more of JSONPath stays empty."""
    path = tuple(filter(None, given["jsonPath"].split(".")))
    return Column(given["name"], given["type"], path, given.get("priority") or 0)
