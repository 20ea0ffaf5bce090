"""Clusters and pods from files into an engine, for commands that ask about them.

What cannot be read of a cluster is told, and the rest is used. What cannot be read of the pod that
is asked about is the end. Nothing here prints.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.cli.shell import BadInput
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.events import (
    BudgetSeen,
    ClaimSeen,
    DeviceClassSeen,
    GrantSeen,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    PodUnreadable,
    StorageClassesHidden,
    StorageClassSeen,
    Tick,
    TopologySeen,
    VolumeSeen,
)
from bayplan.core.model.grants import GENERAL, HOROVOD
from bayplan.core.model.nodes import Node
from bayplan.core.model.numa import Topology
from bayplan.core.model.pods import Pod
from bayplan.kube import wire
from bayplan.kube.defaults import Classes, classes_of, default_pod
from bayplan.kube.grants import grant_of
from bayplan.kube.manifests import Dump, load_dump, load_objects, pod_of
from bayplan.kube.read import Reader, Source, Unreadable

STDIN = "-"
WRONG = (ValueError, msgspec.MsgspecError, RecursionError)


class _Rest(Struct, rename="camel"):
    """What is looked at in a pod that cannot be read: whatever is there."""

    metadata: Any = None
    spec: Any = None
    status: Any = None


class Loaded:
    """A cluster as files say, in an engine, and what of it could not be read."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.problems: list[str] = []
        self.unbound: dict[str, Pod] = {}  # by namespace/name
        self._reader = Reader(remark=self.problems.append)
        self._nodes: dict[str, Node] = {}
        self._topologies: list[tuple[str, Source]] = []  # with their file's path
        self._priority: dict[str, wire.PriorityClass] = {}
        self._runtime: dict[str, wire.RuntimeClass] = {}

    @property
    def verdicts(self) -> Verdicts:
        return next(iter(self.engine.verdicts.values()))

    def add(self, path: str, dump: Dump) -> None:
        """All that is in one file."""
        for source in dump.priority_classes:
            self._add(path, source, self._add_priority)
        for source in dump.runtime_classes:
            self._add(path, source, self._add_runtime)
        for source in dump.namespaces:
            self._add(path, source, self._add_namespace)
        for source in dump.storage_classes:
            self._add(path, source, self._add_storage_class)
        for source in dump.volumes:
            self._add(path, source, self._add_volume)
        for source in dump.claims:
            self._add(path, source, self._add_claim)
        for source in dump.device_classes:
            self._add(path, source, self._add_device_class)
        for source in dump.budgets:
            self._add(path, source, self._add_budget)
        for source in dump.pod_groups:
            self._add(path, source, self._add_pod_group)
        for source in dump.nodes:
            self._add(path, source, self._add_node)
        for i, source in enumerate(dump.pods):
            try:
                pod = self._reader.live_pod(source)
                if pod is not None and pod.node:
                    self.engine.handle(PodSeen(pod), 0.0)
                elif pod is not None:
                    self.unbound[pod.key] = pod
            except Unreadable as error:
                self._close(path, error, source, f"{path}#{i}")
        self._topologies += ((path, source) for source in dump.topologies)
        for kind, jobs in ((GENERAL, dump.elastic_jobs), (HOROVOD, dump.horovod_jobs)):
            for source in jobs:
                self._add(path, source, partial(self._add_job, kind))

    def finish(self) -> None:
        """What is published of zones, after the pods of all files, whom it has counted; and places
        that elastic jobs were promised, beside them."""
        for path, source in self._topologies:
            self._add(path, source, self._add_topology)
        self.engine.handle(Tick(), 0.0)

    def pod(self, manifest: dict[str, Any]) -> Pod:
        """The pod of a manifest, as the API server would have stored it."""
        classes = Classes(self._priority, self._runtime)
        return self._reader.pod(default_pod(pod_of(manifest), classes), newcomer=True)

    def _add(self, path: str, source: Source, add: Callable[[Source], None]) -> None:
        try:
            add(source)
        except Unreadable as error:
            self.problems.append(f"{path}: {error}")

    def _add_priority(self, source: Source) -> None:
        self._priority.update(classes_of(priority=[source]).priority)

    def _add_runtime(self, source: Source) -> None:
        self._runtime.update(classes_of(runtime=[source]).runtime)

    def _add_namespace(self, source: Source) -> None:
        self.engine.handle(NamespaceSeen(*self._reader.namespace(source)), 0.0)

    def _add_storage_class(self, source: Source) -> None:
        self.engine.handle(StorageClassSeen(self._reader.storage_class(source)), 0.0)

    def _add_volume(self, source: Source) -> None:
        self.engine.handle(VolumeSeen(self._reader.volume(source)), 0.0)

    def _add_claim(self, source: Source) -> None:
        self.engine.handle(ClaimSeen(self._reader.claim(source)), 0.0)

    def _add_device_class(self, source: Source) -> None:
        self.engine.handle(DeviceClassSeen(*self._reader.device_class(source)), 0.0)

    def _add_budget(self, source: Source) -> None:
        self.engine.handle(BudgetSeen(self._reader.budget(source)), 0.0)

    def _add_topology(self, source: Source) -> None:
        try:
            topology = self._reader.topology(source)
            if not topology.written_s:  # kubectl leaves that out: all of a dump is of one time
                topology = replace(topology, fingerprint="")
            self.engine.handle(TopologySeen(topology), 0.0)
        except Unreadable as error:
            node = _text(_rest(source).metadata, "name")
            self.engine.handle(TopologySeen(Topology(node, unknown=str(error))), 0.0)
            raise

    def _add_pod_group(self, source: Source) -> None:
        group = self._reader.any_pod_group(source)
        if group is not None:
            self.engine.handle(GroupSeen(group), 0.0)

    def _add_job(self, kind: str, source: Source) -> None:
        self.engine.handle(GrantSeen(grant_of(kind, source, self._reader)), 0.0)

    def _add_node(self, source: Source) -> None:
        node = self._reader.node(source)
        if self._nodes.setdefault(node.name, node) != node:
            raise BadInput(f"node {node.name} is there twice, and not the same")
        self.engine.handle(NodeSeen(node), 0.0)

    def _close(self, path: str, error: Unreadable, source: Source, fallback: str) -> None:
        """What a bound pod uses is not known when it cannot be read: its node takes no more."""
        rest = _rest(source)
        if _text(rest.status, "phase") in ("Succeeded", "Failed"):
            return
        node = _text(rest.spec, "nodeName")
        name = _text(rest.metadata, "name")
        space = _text(rest.metadata, "namespace") or "default"
        uid = _text(rest.metadata, "uid") or (f"{space}/{name}" if name else fallback)
        closes = f"; its node {node} takes no more pods" if node else ""
        self.problems.append(f"{path}: {error}{closes}")
        if node:
            self.engine.handle(PodUnreadable(uid, node), 0.0)


def load_cluster(paths: Sequence[str]) -> Loaded:
    loaded = Loaded()
    for path in paths:
        text = read(path)
        try:
            dump = load_dump([text])
        except WRONG as error:
            raise BadInput(f"{called(path)}: {error}") from None
        try:
            loaded.add(called(path), dump)
        except BadInput as error:
            raise BadInput(f"{called(path)}: {error.message}") from None
    loaded.finish()
    if not loaded.engine.cluster.node_count:
        files = ", ".join(map(called, paths))
        raise BadInput(f"{files}: no node in it (kubectl get nodes,pods,namespaces -A -o json)")
    if not loaded.engine.cluster.storage.classes:
        loaded.engine.handle(StorageClassesHidden(), 0.0)
    return loaded


def load_pod(path: str, loaded: Loaded) -> Pod:
    """The one pod that a manifest describes; objects that describe none may stand beside it."""
    text = read(path)
    try:
        objects = load_objects(text)
        if len(objects) == 1:
            return loaded.pod(objects[0])
        found = [manifest for manifest in objects if _describes_pod(manifest)]
        if len(found) != 1:
            raise ValueError(f"it should describe one pod, but describes {len(found) or 'none'}")
        return loaded.pod(found[0])
    except WRONG as error:
        raise BadInput(f"{called(path)}: {error}") from None


def read(path: str) -> bytes:
    try:
        if path == STDIN:
            return sys.stdin.buffer.read()
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def called(path: str) -> str:
    return "standard input" if path == STDIN else path


def _describes_pod(manifest: dict[str, Any]) -> bool:
    try:
        pod_of(manifest)
    except Unreadable:
        return False
    return True


def _rest(source: Source) -> _Rest:
    try:
        if isinstance(source, bytes | msgspec.Raw):
            return msgspec.json.decode(source, type=_Rest)
        return _Rest(source.get("metadata"), source.get("spec"), source.get("status"))
    except WRONG:
        return _Rest()


def _text(holder: Any, key: str) -> str:
    found = holder.get(key) if isinstance(holder, dict) else None
    return found if isinstance(found, str) else ""
