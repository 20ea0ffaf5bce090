"""Questions to a running scheduler, on the embedded API: it answers, and decides as before."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.cli.embedded import Cluster, running
from bayplan.cli.main import main
from bayplan.local.spec import nodes
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.questions import LiveQuestions
from bayplan.web.desk import Refused

GPU = "nvidia.com/gpu"


def pod(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}
    spec = {"schedulerName": "bayplan", "containers": [container], **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def create(cluster: Cluster, manifest: dict[str, Any], path: str = "") -> None:
    path = path or "/api/v1/namespaces/default/pods"
    await cluster.client.request("POST", path, body=json.dumps(manifest).encode())


async def ask(cluster: Cluster, *steps: Any) -> list[Any]:
    service = cluster.service
    ready, vendors = lambda: service.loop.is_ready, service.config.vendors
    questions = LiveQuestions(service.engine, vendors, service.client, ready)
    found: list[Any] = json.loads(await questions.what_if(json.dumps({"steps": steps}).encode()))[
        "answers"
    ]
    return found


async def node_of(cluster: Cluster, name: str) -> str:
    """Where the pod is bound, once it is."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    while True:
        found = json.loads(await cluster.client.request("GET", path))
        if node := found["spec"].get("nodeName"):
            return str(node)
        await cluster.client.clock.sleep(0.1)


async def story() -> None:
    async with running(nodes("8xA100*2"), Configuration(), VirtualClock(), seed=0) as cluster:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await create(cluster, {"metadata": {"name": "urgent"}, "value": 7}, path)
        with pytest.raises(Refused, match="has not read the whole cluster yet"):
            await ask(cluster)
        while not cluster.service.loop.is_ready:
            await cluster.client.clock.sleep(0.1)
        first, capacity = await ask(
            cluster, {"place": {"pod": pod("a", 8)}}, {"capacity": {"pod": pod("x", 4)}}
        )
        assert capacity == {"ok": True, "count": 2}
        await create(cluster, pod("a", 8))
        assert await node_of(cluster, "a") == first["node"]
        await create(cluster, pod("b", 8))
        full = await node_of(cluster, "b")
        urgent = pod("c", 8, priorityClassName="urgent")
        no, without, preempt, gone = await ask(
            cluster,
            {"fits": {"pod": urgent}},
            {"fits": {"pod": urgent, "node": full, "without": ["default/b"]}},
            {"preempt": {"pod": urgent}},
            {"evict": ["a", "b"]},
        )
        assert no["message"] == f"0/2 nodes are available: 2 Insufficient {GPU}."
        assert (without["ok"], without["node"]) == (True, full)
        assert [len(held["devices"]) for held in without["devices"]] == [8]
        assert preempt["victims"] in (["default/a"], ["default/b"])
        assert gone == {"ok": True, "changed": 2}


def test_a_running_scheduler_answers_from_what_it_would_do() -> None:
    run(story())


def test_what_guards_the_api_goes_together() -> None:
    for options in (("--api-cert", "c"), ("--api-key", "k"), ("--api-client-ca", "a")):
        result = CliRunner().invoke(main, ["run", *options])
        assert result.exit_code == 2
        assert "--api-cert and --api-key go together" in result.stderr
