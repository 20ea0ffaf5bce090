"""Clusters and pods from files: kubectl's JSON, anyone's YAML.

Objects are found and sorted by kind here, not understood: `defaults` and `read` do that. JSON
stays raw until then, since a dump of a large cluster is hundreds of megabytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from bayplan.core.model.grants import GENERAL, HOROVOD
from bayplan.kube.read import Source, Unreadable

Json = dict[str, Any]

_TEMPLATE_AT = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
_MOST_VALUES = 5_000_000  # of a YAML file, its anchors written out
_DEEPEST = 200
_SMALL = 1 << 20  # bytes of what looks like JSON and may still be YAML


class BadFile(ValueError):
    """A file that is neither YAML nor JSON, or holds no objects."""


class Dump(Struct):
    """The objects of a cluster that are of use, as they were found."""

    nodes: list[Source] = []
    pods: list[Source] = []
    namespaces: list[Source] = []
    priority_classes: list[Source] = []
    runtime_classes: list[Source] = []
    claims: list[Source] = []
    volumes: list[Source] = []
    storage_classes: list[Source] = []
    device_classes: list[Source] = []
    budgets: list[Source] = []
    topologies: list[Source] = []
    pod_groups: list[Source] = []  # of whichever group of the API
    elastic_jobs: list[Source] = []
    horovod_jobs: list[Source] = []


class _Head(Struct):
    kind: str | None = None
    items: list[msgspec.Raw] | None = None


class _Kind(Struct):
    kind: str | None = None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay text: Kubernetes has them as strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_objects(text: str | bytes) -> list[Json]:
    """All the objects of a file, those of lists one by one."""
    found = []
    for source, kind in _sources(_bytes(text)):
        value = source if isinstance(source, Mapping) else msgspec.json.decode(source)
        found.append({"kind": kind, **value} if kind else dict(value))
    return found


def load_dump(texts: Iterable[str | bytes]) -> Dump:
    """A cluster from one or more files; kinds that are of no use are passed over."""
    dump = Dump()
    lists = {
        "Node": dump.nodes,
        "Pod": dump.pods,
        "Namespace": dump.namespaces,
        "PriorityClass": dump.priority_classes,
        "RuntimeClass": dump.runtime_classes,
        "PersistentVolumeClaim": dump.claims,
        "PersistentVolume": dump.volumes,
        "StorageClass": dump.storage_classes,
        "DeviceClass": dump.device_classes,
        "PodDisruptionBudget": dump.budgets,
        "NodeResourceTopology": dump.topologies,
        "PodGroup": dump.pod_groups,
        GENERAL: dump.elastic_jobs,
        HOROVOD: dump.horovod_jobs,
    }
    for text in texts:
        for source, kind in _sources(_bytes(text)):
            if kind in lists:
                lists[kind].append(source)
    return dump


def pod_of(manifest: Mapping[str, Any]) -> Json:
    """The pod that a manifest describes: itself, or its template as a pod."""
    kind = str(manifest.get("kind") or "Pod")
    metadata = manifest.get("metadata")
    owner: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    what = f"{kind} {owner.get('name') or owner.get('generateName') or '(without a name)'}"
    found: Any = manifest
    path = () if kind == "Pod" else _TEMPLATE_AT.get(kind, ("spec", "template"))
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("spec"), Mapping):
        raise Unreadable(what, ".".join((*path, "spec")), "there is no pod in it")
    own = found.get("metadata")
    named = {**own} if isinstance(own, Mapping) else {}
    prefix = named.get("generateName") or owner.get("name") or owner.get("generateName") or "pod"
    named["name"] = named.get("name") or str(prefix).rstrip("-")
    if owner.get("namespace"):
        named.setdefault("namespace", owner["namespace"])
    return {**found, "apiVersion": "v1", "kind": "Pod", "metadata": named}


def _sources(data: bytes) -> Iterator[tuple[Source, str]]:
    """Every object with its kind, as it is."""
    if data[:1] not in (b"{", b"["):
        yield from _flat(_load_yaml(data), "")
        return
    try:
        documents: list[Any] = (
            msgspec.json.decode(data, type=list[msgspec.Raw])
            if data[:1] == b"["
            else [msgspec.Raw(data)]
        )
        found = list(_flat(documents, ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > _SMALL:
            raise BadFile(f"not valid JSON: {error}") from None
        found = list(_flat(_load_yaml(data), ""))
    yield from found


def _flat(documents: Iterable[Any], default: str, depth: int = 0) -> Iterator[tuple[Source, str]]:
    """Lists give way to their items; an item of a PodList need not say that it is a Pod."""
    for i, document in enumerate(documents):
        if isinstance(document, msgspec.Raw):
            kind = msgspec.json.decode(document, type=_Kind).kind or default
            items = kind.endswith("List") and msgspec.json.decode(document, type=_Head).items
        elif isinstance(document, dict):
            kind = str(document.get("kind") or default)
            items = kind.endswith("List") and document.get("items")
        else:
            raise BadFile(f"document {i + 1} is not an object but {type(document).__name__}")
        if isinstance(items, list) and depth < 4:
            present = [item for item in items if item is not None and _raw(item) != b"null"]
            yield from _flat(present, kind.removesuffix("List"), depth + 1)
        else:
            yield document, kind


def _raw(item: Any) -> bytes:
    return bytes(item) if isinstance(item, msgspec.Raw) else b""


def _load_yaml(data: bytes) -> list[Any]:
    try:
        _check_depth(data)
        documents = [d for d in yaml.load_all(data, Loader=_Loader) if d is not None]
        if _size(documents, {}) > _MOST_VALUES:
            raise BadFile("its YAML aliases expand to too much")
    except yaml.YAMLError as error:
        raise BadFile(f"not valid YAML: {' '.join(str(error).split())}") from None
    except BadFile:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFile(f"not valid YAML: {error}") from None
    return documents


def _check_depth(data: bytes) -> None:
    """Objects nest to a few dozen; the loader's own recursion would end the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise BadFile(f"nested more than {_DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values there are with every alias written out."""
    children = (
        value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    )
    if not children:
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1  # what it is if it holds itself
        known[id(value)] = 1 + sum(_size(child, known) for child in children)
    return known[id(value)]


def _bytes(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return data.removeprefix(b"\xef\xbb\xbf").strip()
