"""Who leads, by the Lease that they all look at."""

import re

from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.chaos.replica import Replica

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/bayplan"


def holder(plane: ControlPlane) -> str:
    """The identity in the lease; empty when nobody holds it."""
    try:
        spec = plane.request("GET", LEASE)["spec"]
    except Refused as refused:
        if refused.status == 404:
            return ""
        raise
    return str(spec.get("holderIdentity") or "")


def leads(plane: ControlPlane, replica: Replica) -> bool:
    return re.search(rf"(^|\D){replica.pid}(\D|$)", holder(plane)) is not None


def forget(plane: ControlPlane) -> None:
    """So that the first of a test need not wait for the last of another."""
    try:
        plane.request("DELETE", LEASE)
    except Refused as refused:
        if refused.status != 404:
            raise
