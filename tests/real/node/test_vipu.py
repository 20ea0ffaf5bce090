"""A container reads from its environment which partition of IPUs is its own."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from bayplan.testing.controlplane import ControlPlane
from tests.real.node.kubelets import Kubelet
from tests.real.node.rig import PODS, pod
from tests.real.rig import Json, Scheduler, until
from tests.real.vipus import IPU, LABEL, LOCALHOST, Vipu, told

EXAMPLE = Path(__file__).parents[3] / "examples" / "sleep.yaml"
PRINT = "env; echo END=1"
NAMES = {"by-limit", "by-annotation"}


def test_a_container_is_told_its_partition(
    kubelet_of: Callable[[str], AbstractContextManager[Kubelet]],
    node_plane: ControlPlane,
    tmp_path: Path,
    say: Callable[[str], None],
) -> None:
    plane = node_plane
    with kubelet_of("vipu") as kubelet, Vipu("one", ipus=16) as one:
        head = {"metadata": {"labels": {LABEL: one.name}}}
        plane.request("PATCH", f"/api/v1/nodes/{kubelet.name}", head)
        pools = [{"controller": one.pool}]
        with Scheduler(tmp_path, plane.kubeconfig, config={"pools": pools}):
            for body in (asking("by-limit", 4), asking("by-annotation", 2)):
                plane.request("POST", PODS, body)
            for name, size in (("by-limit", 4), ("by-annotation", 2)):
                until(lambda name=name: kubelet.environment(name))  # type: ignore[misc]
                given = kubelet.environment(name)
                site, id, ids = told(plane.request("GET", f"{PODS}/{name}"))

                assert given["IPUOF_VIPU_API_HOST"] == LOCALHOST
                assert given["IPUOF_VIPU_API_PORT"] == str(one.port)
                assert given["IPUOF_VIPU_API_PARTITION_ID"] == id
                assert site == f"{LOCALHOST}:{one.port}"
                assert one.partitions()[id] == ids
                assert len(ids) == size
            for name in sorted(NAMES):
                plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
            until(lambda: one.partitions() == {})
            until(lambda: NAMES.isdisjoint(names(plane)))  # other tests may have left theirs
        say(f"{kubelet.what}: both containers read the partition that the controller has")


def names(plane: ControlPlane) -> list[str]:
    return [each["metadata"]["name"] for each in plane.request("GET", PODS)["items"]]


def asking(name: str, ipus: int) -> Json:
    """It prints what the example's container has in its environment."""
    main = yaml.safe_load(EXAMPLE.read_text())["spec"]["containers"][0]
    made = pod(name, PRINT, env=main["env"])
    if name == "by-limit":
        made["spec"]["containers"][0]["resources"] = {"limits": {IPU: str(ipus)}}
    else:
        made["spec"]["containers"][0]["resources"] = {}
        made["metadata"]["annotations"] = {IPU: str(ipus)}
    return made
