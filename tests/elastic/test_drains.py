"""Nodes that take nobody any more: whose devices count, and who gives way for whom."""

from typing import Any

import pytest

from bayplan.kube.client import NODES, PODS
from tests.elastic.stage import GPU, Stage, elastic, patch, play

Json = dict[str, Any]
TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready"}
TOLERATION = {"key": "team", "operator": "Equal", "value": "vision"}


async def cordon(stage: Stage, name: str, closed: bool) -> None:
    await patch(stage.user, NODES.path(name=name), {"spec": {"unschedulable": closed}})


@pytest.mark.parametrize("drained", ["left", "right"])
@pytest.mark.parametrize("pause_s", [0.0, 1.5])
def test_nobody_is_cut_for_a_job_that_a_drain_leaves_no_room_for(
    drained: str, pause_s: float
) -> None:
    """Two jobs with three workers, each on a node of its own; one node is drained."""

    async def story(stage: Stage) -> None:
        await cordon(stage, "right", True)
        await stage.submit(elastic("a", 2, 3))
        await stage.pass_time(5)
        await cordon(stage, "right", False)
        await stage.submit(elastic("b", 2, 3))
        await stage.pass_time(6)
        assert stage.workers() == {"a": 3, "b": 3}
        stays = "b" if drained == "left" else "a"
        await cordon(stage, drained, True)
        for name, pod in sorted(stage.objects("pods").items()):
            if pod["spec"]["nodeName"] == drained:
                await stage.user.request("DELETE", PODS.path("default", name))
                await stage.pass_time(pause_s)
        for _ in range(60):
            await stage.pass_time(0.5)
            assert stage.workers()[stays] == stage.job(stays).grant.workers == 3
        assert stage.workers() == {stays: 3}

        await cordon(stage, drained, False)
        await stage.pass_time(10)
        assert stage.workers() == {"a": 3, "b": 3}

    play(story, left=3, right=3)


@pytest.mark.parametrize(
    ("change", "tolerations", "free"),
    [
        ({"spec": {"unschedulable": True}}, [TOLERATION], 0),
        ({"spec": {"taints": [TAINT]}}, [], 0),
        ({"spec": {"taints": [TAINT]}}, [TOLERATION | {"value": "speech"}], 0),
        ({"spec": {"taints": [TAINT | {"effect": "NoExecute"}]}}, [], 0),
        ({"spec": {"taints": [TAINT]}}, [TOLERATION], 2),
        ({"spec": {"taints": [TAINT | {"effect": "PreferNoSchedule"}]}}, [], 2),
        ({"spec": {"taints": [TAINT | NOT_READY]}}, [{"operator": "Exists"}], 0),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, [], 0),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, [], 2),
    ],
)
def test_a_node_counts_if_it_takes_the_workers(
    change: Json, tolerations: list[Json], free: int
) -> None:
    """One that takes nobody has what the workers have that are there."""

    async def story(stage: Stage) -> None:
        job = elastic("a", 1, 1)
        job["spec"]["template"]["spec"]["tolerations"] = tolerations
        await stage.submit(job)
        await stage.pass_time(3)
        assert stage.workers() == {"a": 1}
        more = "status" if "status" in change else ""
        assert stage.process is not None
        cluster = stage.process.controller.cluster
        await patch(stage.user, NODES.path(name="only", sub=more), change)
        await stage.pass_time(0.1)
        assert cluster.snapshot("").capacity[GPU] == {"only": 1 + free}

    play(story, only=3)
