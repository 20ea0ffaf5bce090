"""What kube-scheduler and its extenders say to each other (extender/v1): bytes in, values out.

Keys are the Go names, capitals and all, because kube-scheduler writes no others; a key in lower
case is an unknown one. Null stands for "not there". Pods and nodes stay raw: `kube.read` knows
them. Whatever is wrong is one `BadRequest` that names the field.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct, field

from bayplan.kube.terms import located
from bayplan.kube.wire import Int64

_NOTHING = (b"", b"null")

T = TypeVar("T")


class BadRequest(ValueError):
    """A request that cannot be understood: which field, and why."""


class _Wire(Struct, rename="pascal", gc=False):
    pass


# Requests


class FilterArgs(Struct, frozen=True):
    """A pod and the nodes that are left for it."""

    pod: Raw
    names: list[str]
    nodes: dict[str, Raw] | None = None  # whole, by name, from a caller without a node cache

    def passed(
        self,
        names: list[str],
        failed: dict[str, str] | None = None,
        unresolvable: dict[str, str] | None = None,
    ) -> "FilterResult":
        """These nodes fit, in the form in which the caller named its nodes."""
        result = FilterResult(
            failed_nodes=failed or {}, failed_and_unresolvable_nodes=unresolvable or {}
        )
        if self.nodes is None:
            result.node_names = names
        else:
            result.nodes = NodeList([self.nodes[name] for name in names])
        return result


class ScoreArgs(Struct, frozen=True):
    """The same, for prioritize: names are read only by who needs them one by one."""

    pod: Raw
    listed: Raw  # NodeNames, as they came
    body: bytes

    @property
    def names(self) -> list[str]:
        return filter_args(self.body).names


class MetaPod(_Wire):
    uid: str | None = field(default=None, name="UID")


class MetaVictims(_Wire):
    """The pods of one node that would have to go."""

    pods: list[MetaPod | None] | None = None
    num_pdb_violations: Int64 | None = field(default=None, name="NumPDBViolations")

    @classmethod
    def of(cls, uids: list[str], pdb_violations: int = 0) -> "MetaVictims":
        return cls([MetaPod(uid) for uid in uids], pdb_violations)

    @property
    def uids(self) -> list[str]:
        return [pod.uid or "" for pod in self.pods or () if pod is not None]

    @property
    def pdb_violations(self) -> int:
        return self.num_pdb_violations or 0


class PreemptArgs(Struct, frozen=True):
    """A pod, and per node the victims that kube-scheduler would choose for it."""

    pod: Raw
    victims: dict[str, MetaVictims]


class BindArgs(Struct, frozen=True):
    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


# Results


class NodeList(Struct):
    items: list[Raw] | None = None
    metadata: dict[str, str] = {}


class FilterResult(_Wire):
    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}  # preemption may help on these
    failed_and_unresolvable_nodes: dict[str, str] = {}  # and cannot on these
    error: str = ""


class HostPriority(_Wire):
    host: str
    score: int  # 0 to 10; kube-scheduler takes a node that is left out for 0


class PreemptResult(Struct):
    """Always in the short form. A node that is left out is no candidate any more."""

    victims: dict[str, MetaVictims] = field(name="NodeNameToMetaVictims")


class BindResult(_Wire):
    error: str = ""


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


# Reading


class _Nodes(Struct):
    items: list[Raw] | None = None


class _Filter(_Wire):
    pod: Raw = field(default_factory=Raw)
    nodes: _Nodes | None = None
    node_names: list[str] | None = None


class _Score(_Wire):
    pod: Raw = field(default_factory=Raw)
    node_names: Raw = field(default_factory=Raw)


class _Victims(_Wire):
    pods: list[Raw] | None = None
    num_pdb_violations: Int64 | None = field(default=None, name="NumPDBViolations")


class _Preempt(_Wire):
    pod: Raw = field(default_factory=Raw)
    node_name_to_victims: dict[str, _Victims | None] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class _Bind(_Wire):
    pod_name: str | None = None
    pod_namespace: str | None = None
    pod_uid: str | None = field(default=None, name="PodUID")
    node: str | None = None


class _Metadata(Struct, gc=False):
    name: str | None = None
    uid: str | None = None


class _Object(Struct, gc=False):
    metadata: _Metadata | None = None


_filter = msgspec.json.Decoder(_Filter)
_score = msgspec.json.Decoder(_Score)
_preempt = msgspec.json.Decoder(_Preempt)
_bind = msgspec.json.Decoder(_Bind)
_object = msgspec.json.Decoder(_Object)


def filter_args(body: bytes) -> FilterArgs:
    read = _read(_filter, body, "")
    pod = _pod(read.pod)
    if read.node_names is not None or read.nodes is None:
        return FilterArgs(pod, read.node_names or [])
    nodes = {}
    for at, node in enumerate(read.nodes.items or ()):
        nodes[_told(node, "name", f"Nodes.items[{at}]")] = node
    return FilterArgs(pod, list(nodes), nodes)


def score_args(body: bytes) -> ScoreArgs:
    read = _read(_score, body, "")
    return ScoreArgs(_pod(read.pod), read.node_names, body)


def preempt_args(body: bytes) -> PreemptArgs:
    read = _read(_preempt, body, "")
    short, whole = read.node_name_to_meta_victims, read.node_name_to_victims
    if short is not None:
        victims = {node: named or MetaVictims() for node, named in short.items()}
        for node, named in victims.items():
            if "" in named.uids:
                raise BadRequest(f"NodeNameToMetaVictims[{node}]: a pod without UID")
    else:
        victims = {node: _short(node, pods) for node, pods in (whole or {}).items()}
    return PreemptArgs(_pod(read.pod), victims)


def bind_args(body: bytes) -> BindArgs:
    read = _read(_bind, body, "")
    given = {
        "PodName": read.pod_name,
        "PodNamespace": read.pod_namespace,
        "PodUID": read.pod_uid,
        "Node": read.node,
    }
    return BindArgs(*_all(given))


def _all(given: Mapping[str, str | None]) -> list[str]:
    missing = [name for name, text in given.items() if not text]
    if missing:
        raise BadRequest(f"{missing[0]}: missing")
    return [text or "" for text in given.values()]


def _pod(raw: Raw) -> Raw:
    if bytes(raw) in _NOTHING:
        raise BadRequest("Pod: missing or null")
    return raw


def _short(node: str, victims: _Victims | None) -> MetaVictims:
    if victims is None:
        return MetaVictims()
    uids = [
        _told(pod, "uid", f"NodeNameToVictims[{node}].Pods[{at}]")
        for at, pod in enumerate(victims.pods or ())
        if bytes(pod) not in _NOTHING
    ]
    return MetaVictims.of(uids, victims.num_pdb_violations or 0)


def _told(raw: Raw, what: str, where: str) -> str:
    """An object's name or uid."""
    metadata = _read(_object, raw, where).metadata
    text: str | None = getattr(metadata, what, None)
    if not text:
        raise BadRequest(f"{where}.metadata.{what}: missing")
    return text


def _read(decoder: "msgspec.json.Decoder[T]", source: bytes | Raw, where: str) -> T:
    try:
        return decoder.decode(source)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why, inner = located(error)
        at = ".".join(part for part in (where, inner) if part) or "the request"
        raise BadRequest(f"{at}: {why}") from None
