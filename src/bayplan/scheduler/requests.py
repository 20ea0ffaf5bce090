"""The bodies of what we write: a Binding, a condition, a deletion, an eviction, an Event.

Values in, bytes out; nothing here sends anything.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from bayplan.core.model.pods import Pod
from bayplan.kube.client import TOPOLOGIES
from bayplan.scheduler.feed import Condition, Unread

SCHEDULED, FAILED = "Scheduled", "FailedScheduling"
PREEMPTED, EVICTED = "Preempted", "Evicted"
INVALID = "InvalidTopology"
_KINDS = {  # the type and action of an event's reason
    SCHEDULED: ("Normal", "Binding"),
    PREEMPTED: ("Normal", "Preempting"),
    EVICTED: ("Normal", "Evicting"),
    INVALID: ("Warning", "Reading"),
}
_LONGEST_NAME = 253 - 17  # a pod's in an event's, which has a time of 16 digits after a dot
_LONGEST_NOTE = 1024  # bytes; the API server's limit
_MOST_ANNOTATION_BYTES = 256 << 10
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

encode = msgspec.json.Encoder().encode


class Said(Struct, frozen=True, gc=False):
    """Why a pod waits, and which node is kept for it (empty: none any more; None: as it was). The
    hint is for people: the event has it, the condition does not."""

    pod: Pod
    reason: str
    text: str
    nominated: str | None = None
    hint: str = ""

    @property
    def note(self) -> str:
        return f"{self.text} | {self.hint}" if self.hint else self.text


class Note(Struct, frozen=True, gc=False):
    """An event about a pod, or about another object that `pod` has the names of."""

    pod: Pod
    reason: str
    text: str
    version: str = ""  # the pod's resourceVersion
    related: Pod | None = None  # on whose behalf it happened
    kind: str = "Pod"
    api_version: str = "v1"


class _Object(Struct, rename="camel"):
    pass


class _Metadata(_Object):
    name: str
    namespace: str
    uid: str | UnsetType = UNSET
    annotations: dict[str, str] | UnsetType = UNSET


class _Target(_Object):
    name: str
    kind: str = "Node"
    api_version: str = "v1"


class _Binding(_Object):
    metadata: _Metadata
    target: _Target
    kind: str = "Binding"
    api_version: str = "v1"


class _Regarding(_Object):
    namespace: str
    name: str
    uid: str
    resource_version: str | UnsetType = UNSET
    kind: str = "Pod"
    api_version: str = "v1"


class _Event(_Object):
    metadata: _Metadata
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    type: str
    regarding: _Regarding
    note: str
    related: _Regarding | UnsetType = UNSET
    kind: str = "Event"
    api_version: str = "events.k8s.io/v1"


def binding(pod: Pod, node: str, annotations: dict[str, str] | None = None) -> bytes:
    """The uid guards against a pod that was made again under the same name."""
    noted: dict[str, str] | UnsetType = annotations or UNSET
    return encode(_Binding(_Metadata(pod.name, pod.namespace, pod.uid, noted), _Target(node)))


def bad_annotation(annotations: dict[str, str]) -> str | None:
    """Why the pod's later updates would be refused: the API server does not check a Binding's."""
    for key in annotations:
        if (wrong := _bad_key(key)) is not None:
            return wrong
    size = len("".join([*annotations, *annotations.values()]).encode())
    if size > _MOST_ANNOTATION_BYTES:
        return f"the annotations are {size} bytes together, more than {_MOST_ANNOTATION_BYTES}"
    return None


@lru_cache(maxsize=1024)  # most are the same for every pod
def _bad_key(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
        return f"the annotation key {key!r} is not valid"
    return f"the annotation key {key!r} is too long" if len(prefix) > 253 else None


def condition(said: Said, before: Condition, wall: float) -> bytes:
    """A patch of PodScheduled, and of the nomination if there is news of it. The transition's
    time stays while the status does."""
    fields: dict[str, object] = {
        "type": "PodScheduled",
        "status": "False",
        "reason": said.reason,
        "message": said.text.encode(errors="replace").decode(),  # a plugin's may be anything
        "lastProbeTime": None,
        "lastTransitionTime": before.since or second(wall),
    }
    if before.generation:
        fields["observedGeneration"] = before.generation
    # of the pod as we know it: a bind that came in between must not be contradicted
    metadata = {"uid": said.pod.uid, "resourceVersion": before.resource_version}
    status: dict[str, object] = {"conditions": [fields]}
    if said.nominated is not None:
        status["nominatedNodeName"] = said.nominated or None  # null takes it away
    return encode({"metadata": metadata, "status": status})


def disrupted(victim: Pod, preemptor: Pod, wall: float) -> bytes:
    """A patch that says why the pod will end; a Job's failure policy can look for it."""
    fields = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{preemptor.scheduler}: preempting to accommodate a higher priority pod",
        "lastProbeTime": None,
        "lastTransitionTime": second(wall),
    }
    return encode({"metadata": {"uid": victim.uid}, "status": {"conditions": [fields]}})


def deletion(pod: Pod) -> bytes:
    """Of this very pod, which takes the time that it asks for itself."""
    return encode({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid}})


def eviction(pod: Pod) -> bytes:
    return encode(
        {
            "kind": "Eviction",
            "apiVersion": "policy/v1",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
    )


def removed(pod: Pod, preemptor: Pod | None, node: str, why: str) -> Note:
    """What is said of a pod that was deleted for another, or evicted."""
    if preemptor is None:
        return Note(pod, EVICTED, why)
    text = f"Preempted by pod {preemptor.uid} on node {node}"
    return Note(pod, PREEMPTED, text, related=preemptor)


def of_topology(item: Unread, scheduler: str) -> Note:
    """What is wrong with a node's published zones, said at the object."""
    about = replace(item.stand_in, scheduler=scheduler, namespace="default")
    api_version = f"{TOPOLOGIES.group}/{TOPOLOGIES.version}"
    return Note(about, INVALID, item.why, kind="NodeResourceTopology", api_version=api_version)


def event(note: Note, instance: str, wall: float) -> bytes:
    pod, related = note.pod, note.related
    reporter = (related or pod).scheduler
    kind, action = _KINDS.get(note.reason, ("Warning", "Scheduling"))
    space = pod.namespace if note.kind == "Pod" else ""  # the other has none
    return encode(
        _Event(
            metadata=_Metadata(f"{pod.name[:_LONGEST_NAME]}.{int(wall * 1e9):x}", pod.namespace),
            event_time=_microsecond(wall),
            reporting_controller=reporter,
            reporting_instance=f"{reporter}-{instance}"[:128],
            action=action,
            reason=note.reason,
            type=kind,
            regarding=_Regarding(
                space, pod.name, pod.uid, note.version or UNSET, note.kind, note.api_version
            ),
            note=shortened(note.text),
            related=_Regarding(related.namespace, related.name, related.uid) if related else UNSET,
        )
    )


def second(wall: float) -> str:
    """A time as Kubernetes writes it."""
    return f"{_text(int(wall))}Z"


def _microsecond(wall: float) -> str:
    """The same with six digits more."""
    seconds, rest = divmod(int(wall * 1e6), 1_000_000)
    return f"{_text(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=4)
def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def shortened(text: str) -> str:
    """At most as long as a note may be; cut as kube-scheduler cuts it."""
    raw = text.encode(errors="replace")
    if len(raw) <= _LONGEST_NOTE:
        return raw.decode()
    return raw[: _LONGEST_NOTE - 4].decode(errors="ignore") + " ..."
