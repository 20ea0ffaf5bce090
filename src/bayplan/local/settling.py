"""How a controller goes from one object to the next, and what it makes for them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bayplan.local.kinds import Kind
from bayplan.local.store import Json, Key, decode, encode

log = logging.getLogger("bayplan.local")

AT_ONCE = 500  # pods that are made for one object before the others have their turn
RETRY_S = 5.0  # what could not be created is tried again


class Due:
    """When to look again, even if nothing happens."""

    def __init__(self) -> None:
        self.in_s: float | None = None

    def after(self, seconds: float) -> None:
        self.in_s = seconds if self.in_s is None else min(self.in_s, seconds)

    def retry(self) -> None:
        self.after(RETRY_S)


@contextmanager
def kept_going(kind: Kind, key: Key) -> Iterator[None]:
    """One odd object must not keep the others from their turn."""
    try:
        yield
    except Exception:
        log.exception("%s %s cannot be settled", kind.kind, "/".join(filter(None, key)))


def made_by(kind: Kind, owner: Json) -> Json:
    """A pod of an owner's template that the owner controls; it has no name yet."""
    about = owner["metadata"]
    template: Json = decode(encode(owner["spec"]["template"]))
    metadata = {
        **{k: v for k, v in template["metadata"].items() if k in _TAKEN},
        "generateName": f"{about['name']}-",
        "namespace": about["namespace"],
        "ownerReferences": [
            {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "name": about["name"],
                "uid": about["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    return {"metadata": metadata, "spec": template["spec"]}


_TAKEN = ("labels", "annotations", "finalizers")  # of a template's metadata
