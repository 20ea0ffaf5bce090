"""NUMA zones on a real API server and on the embedded one: the kind, its versions, nonsense."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.embedded import Plane
from tests.numa.clusters import topology, zone
from tests.numa.definition import defined, is_served, path
from tests.real.rig import Cluster, Json, Scheduler, until

OWN = {"cpu": "6", "memory": "4Gi"}


@pytest.fixture
def cluster(plane: Plane) -> Cluster:
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Cluster(plane, name)


def picky(name: str, **amounts: str) -> Json:
    """A Guaranteed pod."""
    asked = {**OWN, **amounts}
    container = {"name": "main", "image": "registry.example/train:1"}
    resources = {"requests": asked, "limits": asked}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "bayplan",
            "containers": [{**container, "resources": resources}],
        },
    }


def submit(cluster: Cluster, manifest: Json) -> None:
    cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/pods", manifest)


def publish(cluster: Cluster, published: Json, version: str = "v1alpha2") -> None:
    until(lambda: is_served(cluster.plane, version))
    body: Any = {**published, "apiVersion": f"topology.node.k8s.io/{version}"}
    cluster.plane.request("POST", path(version), body)


def halves(name: str, cpu: str) -> Json:
    return topology(
        name, [{"cpu": f"32/{cpu}", "memory": "128Gi"}] * 2, "SingleNUMANodeContainerLevel"
    )


def test_a_pod_goes_where_one_zone_has_it_all_and_says_why_it_waits(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("a")
    cluster.add_node("b")
    with defined(cluster.plane):
        publish(cluster, halves("a", "4"))
        publish(cluster, halves("b", "8"))
        with Scheduler(tmp_path, cluster.plane.kubeconfig):
            submit(cluster, picky("p"))
            until(lambda: cluster.node_of("p") == "b")
            submit(cluster, picky("q"))  # the first may be in either zone
            said = "0/2 nodes are available: 2 cannot align container."
            until(lambda: cluster.condition("q").get("message", "").startswith(said))

            cluster.plane.request("PATCH", f"{path()}/a", {"zones": halves("a", "8")["zones"]})
            until(lambda: cluster.node_of("q") == "a")


def test_the_kind_may_come_later_and_be_of_the_older_version(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("a")
    left = [zone("left", {"cpu": "4", "memory": "1Gi"})]
    with Scheduler(tmp_path, cluster.plane.kubeconfig), defined(cluster.plane, "v1alpha1"):
        publish(cluster, {**halves("a", "4"), "zones": left}, "v1alpha1")

        def is_refused() -> bool:
            """A pod is tried again and again until the zones are known."""
            submit(cluster, picky("p"))
            until(lambda: cluster.condition("p"))
            said = str(cluster.condition("p").get("message", ""))
            cluster.delete_pod("p")
            return "cannot align container" in said

        until(is_refused, 90)


def test_nonsense_is_told_at_the_object_and_disturbs_nothing_else(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("a")
    cluster.add_node("b")
    with defined(cluster.plane):
        publish(cluster, topology("a", [{"cpu": "-1"}]))
        publish(cluster, halves("b", "8"))
        with Scheduler(tmp_path, cluster.plane.kubeconfig) as scheduler:
            why = "noderesourcetopology a: zones[0].resources[0].available: it is negative"
            until(lambda: scheduler.said(why))
            cluster.add_pod("plain", gpus=0, nodeSelector={"kubernetes.io/hostname": "a"})
            until(lambda: cluster.node_of("plain") == "a")
            submit(cluster, picky("p"))
            until(lambda: cluster.node_of("p") == "b")

            def told() -> list[str]:
                events = cluster.plane.request(
                    "GET", "/apis/events.k8s.io/v1/namespaces/default/events"
                )["items"]
                about = [e for e in events if e["regarding"]["kind"] == "NodeResourceTopology"]
                return [e["note"] for e in about if e["regarding"]["name"] == "a"]

            until(lambda: told() == [why])
