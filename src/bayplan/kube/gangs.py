"""What a pod's owner says of it: its gang, when it last saved its work, how long it runs.

Nobody checks annotations when they are written, so what is wrong in them is told here, by name. A
pod that waits and whose gang cannot be understood is `Wrong` as a whole: bound alone, it would be
just what its owner did not want. Of a pod that has its place only the part that is wrong is left
out: its node must not suffer for a word. Times are left out likewise, wherever they are.

A pod is a member of one gang, which it names in one of four ways. Where that is a PodGroup, the
object says everything else.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from bayplan.core.model.groups import Source, group_key
from bayplan.core.model.pods import Gang
from bayplan.core.model.selectors import base10, is_label_key
from bayplan.kube import wire
from bayplan.kube.terms import Wrong, seconds_of, short

MOST = 2**31 - 1  # members; an int32, as counts are in Kubernetes
MOST_NEAR = 8  # label keys
LONGEST_S = 2**31 - 1
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
GROUP_FIELD = "spec.schedulingGroup.podGroupName"
CRD: Source = "scheduling.x-k8s.io"


class Words(NamedTuple):
    """What a pod says of its gang: its name, in one way or another, and the rest."""

    field: str | None = None
    label: str | None = None
    old_label: str | None = None
    gang: str | None = None
    minimum: str | None = None
    near: str | None = None
    within: str | None = None
    spread: str | None = None
    across: str | None = None


NAMES = (
    GROUP_FIELD,
    f"metadata.labels[{wire.GROUP_LABEL}]",
    f"metadata.labels[{wire.OLD_GROUP_LABEL}]",
    f"metadata.annotations[{wire.GANG}]",
)
REST = (wire.GANG_MIN, wire.GANG_NEAR, wire.GANG_WITHIN, wire.GANG_SPREAD, wire.GANG_ACROSS)


def words_of(
    labels: Mapping[str, str], spec: wire.PodSpec, annotations: wire.PodAnnotations | None
) -> Words | None:
    """What the pod says of a gang; nearly no pod says anything. An empty name is none."""
    label, old_label = labels.get(wire.GROUP_LABEL), labels.get(wire.OLD_GROUP_LABEL)
    field = spec.scheduling_group.pod_group_name if spec.scheduling_group is not None else None
    if annotations is None or not annotations.has_gang:
        if not (field or label or old_label):
            return None
        return Words(field or None, label or None, old_label or None)
    return Words(
        field or None,
        label or None,
        old_label or None,
        annotations.gang,
        annotations.gang_min,
        annotations.gang_near,
        annotations.gang_within,
        annotations.gang_spread,
        annotations.gang_across,
    )


def gang_of(words: Words, namespace: str) -> Gang:
    """The gang that the words mean, of which some are there."""
    named = _named(words)
    if not named:
        raise Wrong(_at(wire.GANG), "a gang needs a name, and this pod has only the rest")
    (where, name), *others = named.items()
    for other, another in others:
        if name != another or not _same_kind(where, other):
            why = f"it names {short(another)}, but {where} names {short(name)}"
            raise Wrong(other, f"{why}: a pod is a member of one gang")
    if not _NAME.fullmatch(name):
        raise Wrong(where, f"{short(name)} is not a name")
    if where != NAMES[-1]:
        source = "scheduling.k8s.io" if where == GROUP_FIELD else CRD
        return Gang(group_key(source, namespace, name), grouped=True)
    return Gang(
        f"{namespace}/{name}",
        minimum_of(words.minimum),
        *topology(words.near, words.within, words.spread, words.across),
    )


def good_part(words: Words, namespace: str) -> Gang | None:
    """What can be understood of words that are wrong; None without a good name."""
    named = _named(words)
    if not named:
        return None
    first = [name if i == _place(named) else None for i, name in enumerate(words[: len(NAMES)])]
    kept = Words(*first)
    try:
        gang_of(kept, namespace)
    except Wrong:
        return None
    for field in Words._fields[len(NAMES) :]:
        tried = kept._replace(**{field: getattr(words, field)})
        try:
            gang_of(tried, namespace)
        except Wrong:
            continue
        kept = tried
    return gang_of(kept, namespace)


def unheeded(words: Words) -> list[str]:
    """The annotations that say what a PodGroup says already."""
    return [key for key, text in zip(REST, words[len(NAMES) :], strict=True) if text is not None]


def topology(
    near: str | None, within: str | None, spread: str | None, across: str | None
) -> tuple[tuple[str, ...], str, str, str]:
    """Where the members of a gang go, as annotations say it."""
    keys = _near(near), _key(wire.GANG_WITHIN, within), _key(wire.GANG_SPREAD, spread)
    apart = _key(wire.GANG_ACROSS, across)
    if apart and apart == keys[1]:
        why = f"{short(apart)} is the key of {_at(wire.GANG_WITHIN)} too: there is one domain only"
        raise Wrong(_at(wire.GANG_ACROSS), why)
    return *keys, apart


def checkpoint_of(text: str) -> float:
    """When the pod last saved its work."""
    return seconds_of(text, _at(wire.CHECKPOINT))


def run_seconds_of(text: str) -> float:
    """How long the pod runs at most; 0 says nothing."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise Wrong(_at(wire.RUN_SECONDS), f"{short(text)} is not a number of seconds")
    return seconds


def _named(words: Words) -> dict[str, str]:
    """By where it stands: the name of a gang. The field first, which nobody can change."""
    given = zip(NAMES, words[: len(NAMES)], strict=True)
    return {where: name for where, name in given if name is not None}


def _place(named: Mapping[str, str]) -> int:
    return NAMES.index(next(iter(named)))


def _same_kind(one: str, other: str) -> bool:
    """Both labels mean one PodGroup."""
    return {one, other} == {*NAMES[1:3]}


def minimum_of(text: str | None) -> int:
    """How many start together at least."""
    if text is None:
        return 1
    number = base10(text)
    if number is None or not 1 <= number <= MOST:
        raise Wrong(_at(wire.GANG_MIN), f"{short(text)} is not a whole number from 1 on")
    return number


def _near(text: str | None) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in (text or "").split(",")) if text else ())
    for key in keys:
        if not is_label_key(key):
            raise Wrong(_at(wire.GANG_NEAR), f"{short(key)} is not a label key")
    if len(keys) > MOST_NEAR:
        raise Wrong(_at(wire.GANG_NEAR), f"more than {MOST_NEAR} label keys")
    return keys


def _key(annotation: str, text: str | None) -> str:
    """One label key, or none."""
    key = (text or "").strip()
    if key and not is_label_key(key):
        raise Wrong(_at(annotation), f"{short(key)} is not a label key")
    return key


def _at(key: str) -> str:
    return f"metadata.annotations[{key}]"
