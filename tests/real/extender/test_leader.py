"""Two replicas and one lease: only the holder answers, and the other takes over."""

from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.apicheck import Json
from tests.real.chaos.waiting import eventually
from tests.real.extender import rig, rules
from tests.real.extender.rig import Extender, StartExtender
from tests.real.extender.rules import INF2

LEASE = "bayplan-extender"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
ELECTION = {
    "leaderElection": {
        "leaderElect": True,
        "resourceName": LEASE,
        "leaseDuration": "3s",
        "renewDeadline": "2s",
        "retryPeriod": "300ms",
    }
}
NODE = "inf2-a"


def test_the_other_takes_over_from_a_leader_that_was_killed(
    wiped: ControlPlane, namespace: str, start_extender: StartExtender
) -> None:
    forget(wiped)
    wiped.request("POST", "/api/v1/nodes", rig.node(NODE, INF2))
    path = f"/api/v1/namespaces/{namespace}/pods"
    first, second = (
        wiped.request("POST", path, rig.pod(name, INF2, 5)) for name in ("first", "second")
    )
    replicas = [start_extender(config=ELECTION).wait_until_ready() for _ in range(2)]
    leader, other = sorted(replicas, key=lambda each: not eventually_leads(each, replicas))

    assert passes(leader, first) == (200, [NODE])
    for verb in ("filter", "prioritize"):
        assert other.ask(verb, args(first))[0] == 503
    assert other.ask("preempt", {"Pod": first, "NodeNameToMetaVictims": {}})[0] == 503
    assert other.bind(first, NODE) != ""
    assert "nodeName" not in wiped.request("GET", f"{path}/first")["spec"]
    assert leader.bind(first, NODE) == ""

    leader.kill()

    eventually(lambda: passes(other, second) == (200, [NODE]), "the other takes over")
    assert other.bind(second, NODE) == ""
    told = [rules.read(wiped.request("GET", f"{path}/{name}")).told for name in ("first", "second")]
    assert told == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]


def eventually_leads(replica: Extender, replicas: list[Extender]) -> bool:
    """Whether this one leads, once one of them does."""
    return eventually(lambda: [each for each in replicas if leads(each)], "a leader")[0] is replica


def leads(replica: Extender) -> bool:
    """A filter would keep devices for the pod for a while."""
    return replica.ask("prioritize", args(rig.pod("nobody", INF2, 1)))[0] == 200


def passes(replica: Extender, pod: Json) -> tuple[int, list[str]]:
    status, said = replica.ask("filter", args(pod))
    return status, said["NodeNames"] if status == 200 else []


def args(pod: Json) -> Json:
    return {"Pod": pod, "Nodes": None, "NodeNames": [NODE]}


def forget(plane: ControlPlane) -> None:
    try:
        plane.request("DELETE", f"{LEASES}/{LEASE}")
    except Refused as refused:
        if refused.status != 404:
            raise
