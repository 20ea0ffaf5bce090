"""The columns of kinds that are only stored here: services, secrets, volumes, claims, roles."""

from collections.abc import Callable, Iterable
from typing import Any

from bayplan.local.since import since
from bayplan.local.store import Json

Columns = tuple[tuple[str, str, int], ...]  # name, type, priority: above 0 only in wide output
Cells = Callable[[Json, float], list[Any]]

NONE, UNSET = "<none>", "<unset>"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_SHOWN_ADDRESSES = 3  # of Endpoints; the others are counted


def plain(*names: str, wide: tuple[str, ...] = ()) -> Columns:
    return (
        *((name, "string", 0) for name in names),
        *((name, "string", 1) for name in wide),
    )


def age(value: Json, wall: float) -> str:
    return since(value["metadata"].get("creationTimestamp"), wall)


def part(value: Json, *path: str) -> Any:
    """What stands there; an empty object where nothing does."""
    for name in path:
        value = value.get(name) or {}
    return value


def _name(value: Json) -> str:
    return str(value["metadata"]["name"])


def _name_and_age(value: Json, wall: float) -> list[Any]:
    return [_name(value), age(value, wall)]


def _service(value: Json, wall: float) -> list[Any]:
    spec = part(value, "spec")
    sort = spec.get("type") or "ClusterIP"
    outside = ",".join(spec.get("externalIPs") or ())
    if sort == "ExternalName":
        outside = spec.get("externalName", "")
    elif sort == "LoadBalancer":
        entries = part(value, "status", "loadBalancer", "ingress") or ()
        given = [entry.get("ip") or entry.get("hostname", "") for entry in entries]
        outside = ",".join([*given, *filter(None, [outside])]) or "<pending>"
    return [
        _name(value),
        sort,
        spec.get("clusterIP") or NONE,
        outside or NONE,
        ",".join(map(_port, spec.get("ports") or ())) or NONE,
        age(value, wall),
        _pairs(spec.get("selector")),
    ]


def _port(port: Json) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol') or 'TCP'}"


def _pairs(labels: Json | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _endpoints(value: Json, wall: float) -> list[Any]:
    found = [
        ":".join(filter(None, (str(address.get("ip")), port)))
        for subset in value.get("subsets") or ()
        for port in [str(port.get("port")) for port in subset.get("ports") or ()] or [""]
        for address in subset.get("addresses") or ()
    ]
    more = len(found) - _SHOWN_ADDRESSES
    text = ",".join(found[:_SHOWN_ADDRESSES]) + (f" + {more} more..." if more > 0 else "")
    return [_name(value), text or NONE, age(value, wall)]


def _secret(value: Json, wall: float) -> list[Any]:
    sort = value.get("type") or "Opaque"
    return [_name(value), sort, len(value.get("data") or {}), age(value, wall)]


def _access_modes(modes: Iterable[str] | None) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes or ())


def _claim(value: Json, wall: float) -> list[Any]:
    spec, status = part(value, "spec"), part(value, "status")
    volume = spec.get("volumeName") or ""
    leaving = value["metadata"].get("deletionTimestamp")
    return [
        _name(value),
        "Terminating" if leaving else status.get("phase", ""),
        volume,
        part(status, "capacity").get("storage", "0") if volume else "",
        _access_modes(status.get("accessModes")) if volume else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        age(value, wall),
        spec.get("volumeMode") or UNSET,
    ]


def _volume(value: Json, wall: float) -> list[Any]:
    spec, status = part(value, "spec"), part(value, "status")
    claim = part(spec, "claimRef")
    leaving = value["metadata"].get("deletionTimestamp")
    return [
        _name(value),
        part(spec, "capacity").get("storage", "0"),
        _access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy") or "",
        "Terminating" if leaving else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        status.get("reason") or "",
        age(value, wall),
        spec.get("volumeMode") or UNSET,
    ]


def _storage_class(value: Json, wall: float) -> list[Any]:
    default = part(value, "metadata", "annotations").get(_DEFAULT_CLASS) == "true"
    return [
        f"{_name(value)} (default)" if default else _name(value),
        value.get("provisioner") or "",
        value.get("reclaimPolicy") or "Delete",
        value.get("volumeBindingMode") or "Immediate",
        bool(value.get("allowVolumeExpansion")),
        age(value, wall),
    ]


def _quota(value: Json, wall: float) -> list[Any]:
    hard, used = part(value, "status", "hard"), part(value, "status", "used")
    said = {name: f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard)}
    limits = [text for name, text in said.items() if name.startswith("limits")]
    others = [text for name, text in said.items() if not name.startswith("limits")]
    return [_name(value), ", ".join(others), ", ".join(limits), age(value, wall)]


def _runtime_class(value: Json, wall: float) -> list[Any]:
    return [_name(value), value.get("handler") or "", age(value, wall)]


def _csi_node(value: Json, wall: float) -> list[Any]:
    return [_name(value), len(part(value, "spec", "drivers")), age(value, wall)]


def _slice(value: Json, wall: float) -> list[Any]:
    spec = part(value, "spec")
    pool = part(spec, "pool").get("name", "")
    node = spec.get("nodeName") or UNSET
    return [_name(value), node, spec.get("driver", ""), pool, age(value, wall)]


def _resource_claim(value: Json, wall: float) -> list[Any]:
    status, words = part(value, "status"), []
    if value["metadata"].get("deletionTimestamp"):
        words.append("deleted")
    if status.get("allocation"):
        words.append("allocated")
    if status.get("reservedFor"):
        words.append("reserved")
    return [_name(value), ",".join(words or ["pending"]), age(value, wall)]


def _role_binding(value: Json, wall: float) -> list[Any]:
    role, subjects = part(value, "roleRef"), value.get("subjects") or ()

    def named(sort: str) -> str:
        return ", ".join(str(s.get("name", "")) for s in subjects if s.get("kind") == sort)

    accounts = [
        f"{subject.get('namespace', '')}/{subject.get('name', '')}"
        for subject in subjects
        if subject.get("kind") == "ServiceAccount"
    ]
    return [
        _name(value),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        age(value, wall),
        named("User"),
        named("Group"),
        ", ".join(accounts),
    ]


_BINDING = (
    plain("Name", "Role", "Age", wide=("Users", "Groups", "ServiceAccounts")),
    _role_binding,
)
_NAMED = (plain("Name", "Age"), _name_and_age)
OTHERS: dict[str, tuple[Columns, Cells]] = {
    "Service": (
        plain(
            "Name",
            "Type",
            "Cluster-IP",
            "External-IP",
            "Port(s)",
            "Age",
            wide=("Selector",),
        ),
        _service,
    ),
    "Endpoints": (plain("Name", "Endpoints", "Age"), _endpoints),
    "Secret": (plain("Name", "Type", "Data", "Age"), _secret),
    "ServiceAccount": _NAMED,
    "PersistentVolumeClaim": (
        plain(
            *("Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass"),
            *("VolumeAttributesClass", "Age"),
            wide=("VolumeMode",),
        ),
        _claim,
    ),
    "PersistentVolume": (
        plain(
            *("Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim"),
            *("StorageClass", "VolumeAttributesClass", "Reason", "Age"),
            wide=("VolumeMode",),
        ),
        _volume,
    ),
    "StorageClass": (
        plain(
            *("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode"),
            *("AllowVolumeExpansion", "Age"),
        ),
        _storage_class,
    ),
    "ResourceQuota": (plain("Name", "Request", "Limit", "Age"), _quota),
    "RuntimeClass": (plain("Name", "Handler", "Age"), _runtime_class),
    "CSINode": (
        (("Name", "string", 0), ("Drivers", "integer", 0), ("Age", "string", 0)),
        _csi_node,
    ),
    "DeviceClass": _NAMED,
    "ResourceSlice": (plain("Name", "Node", "Driver", "Pool", "Age"), _slice),
    "ResourceClaim": (plain("Name", "State", "Age"), _resource_claim),
    "ResourceClaimTemplate": _NAMED,
    "RoleBinding": _BINDING,
    "ClusterRoleBinding": _BINDING,
}
