"""The kind NodeResourceTopology for an API server, as loose as can be: nonsense gets through."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bayplan.testing.api import Refused
from tests.embedded import Plane

Json = dict[str, Any]
GROUP, PLURAL = "topology.node.k8s.io", "noderesourcetopologies"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(versions: Sequence[str] = ("v1alpha1", "v1alpha2")) -> Json:
    """The last version is the one that is stored."""
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"
            },
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": "NodeResourceTopology",
                "listKind": "NodeResourceTopologyList",
                "plural": PLURAL,
                "singular": "noderesourcetopology",
                "shortNames": ["node-res-topo"],
            },
            "versions": [
                {
                    "name": name,
                    "served": True,
                    "storage": name == versions[-1],
                    "schema": {"openAPIV3Schema": loose},
                }
                for name in versions
            ],
        },
    }


def path(version: str = "v1alpha2") -> str:
    return f"/apis/{GROUP}/{version}/{PLURAL}"


@contextmanager
def defined(plane: Plane, *versions: str) -> Iterator[None]:
    """The server has the kind inside the block."""
    found = definition(versions or ("v1alpha1", "v1alpha2"))
    plane.request("POST", DEFINITIONS, found)
    try:
        yield
    finally:
        plane.request("DELETE", f"{DEFINITIONS}/{PLURAL}.{GROUP}")


def is_served(plane: Plane, version: str) -> bool:
    try:
        plane.request("GET", path(version))
        return True
    except Refused:
        return False
