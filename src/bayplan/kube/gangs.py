"""What a pod's owner says of it in annotations: its gang, and when it last saved its work.

Nobody checks annotations when they are written, so what is wrong in them is told here, by name. A
pod that waits and whose gang cannot be understood is `Wrong` as a whole: bound alone, it would be
just what its owner did not want. Of a pod that has its place only the part that is wrong is left
out: its node must not suffer for a word. A time of saving is left out likewise, wherever it is.
"""

import re

from bayplan.core.model.pods import Gang
from bayplan.core.model.selectors import base10, is_label_key
from bayplan.kube import wire
from bayplan.kube.terms import Wrong, seconds_of, short

MOST = 2**31 - 1  # members; an int32, as counts are in Kubernetes
MOST_NEAR = 8  # label keys
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
Words = tuple[str | None, str | None, str | None]  # the name, the minimum, near what


def gang_of(words: Words, namespace: str) -> Gang:
    """The gang that the words mean, of which some are there."""
    name, minimum, near = words
    if name is None:
        raise Wrong(_at(wire.GANG), "a gang needs a name, and this pod has only the rest")
    if not _NAME.fullmatch(name):
        raise Wrong(_at(wire.GANG), f"{short(name)} is not a name")
    return Gang(f"{namespace}/{name}", _minimum(minimum), _near(near))


def good_part(words: Words, namespace: str) -> Gang | None:
    """What can be understood of words that are wrong; None without a good name."""
    name, minimum, near = words
    for some in ((name, minimum, None), (name, None, near), (name, None, None)):
        try:
            return gang_of(some, namespace)
        except Wrong:
            continue
    return None


def _minimum(text: str | None) -> int:
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


def checkpoint_of(text: str) -> float:
    """When the pod last saved its work."""
    return seconds_of(text, _at(wire.CHECKPOINT))


def _at(key: str) -> str:
    return f"metadata.annotations[{key}]"
