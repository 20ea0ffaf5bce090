"""Agent and scheduler with just the rights of their manifests, under the policies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.core.model.devices import ASSIGNMENT, INVENTORY
from bayplan.testing.controlplane import ControlPlane, Process, free_ports
from tests.real.rig import until
from tests.real.rights import Rights, apply, printed
from tests.real.ruled import Ruled
from tests.real.test_manifests import BEYOND, VERBS, resources

MEMORY, CARD = "bayplan.dev/gpu-memory-mib", "ai.centaurus.io/gpu-0"
GRANTED = {
    "/pods": {"get", "list", "watch", "patch"},
    "/nodes": {"list", "watch", "patch"},
    "/nodes/status": {"patch"},
}


@pytest.fixture(scope="module")
def ruled(control_plane: ControlPlane) -> Iterator[Ruled]:
    found = Ruled(control_plane, everything=False)
    try:
        found.enforce()
        agents, scheduler = (
            Rights(control_plane, found.account(name)) for name in (found.agents, found.space)
        )
        until(lambda: agents.may("patch", "/nodes/status"))
        until(lambda: scheduler.may("create", "/pods/binding"))
        yield found
    finally:
        found.lift()


def test_every_object_is_accepted_and_stays_as_it_is(ruled: Ruled) -> None:
    options = (
        "--profile",
        "--runtime-class",
        "nvidia",
        "--config-map",
        "bayplan",
        "--node-selector",
        "gpu=",
    )
    first = apply(ruled.plane, printed("agent", *options), "--dry-run=server")
    names = ("--namespace", ruled.space, "--name", ruled.agents)
    again = apply(ruled.plane, printed("agent", *names))

    assert len(first) == len(again) == 4
    assert all(line.endswith(" created (server dry run)") for line in first)
    assert all(line.endswith(" unchanged") for line in again)


def test_the_role_grants_exactly_what_is_used(ruled: Ruled) -> None:
    ours = Rights(ruled.plane, ruled.account(ruled.agents))
    anybody = Rights(ruled.plane, ruled.account("another"))
    found: dict[str, set[str]] = {}
    for resource in sorted({*resources(ruled.plane), "*/*", "/*", "/pods/eviction", "/secrets"}):
        for verb in (*VERBS, *BEYOND):
            if ours.may(verb, resource) and not anybody.may(verb, resource):
                found.setdefault(resource, set()).add(verb)

    assert found == GRANTED


def test_the_scheduler_assigns_and_the_agent_corrects(ruled: Ruled) -> None:
    name = ruled.given({ASSIGNMENT: "true"})
    ruled.agent(ruled.here).annotate(name, {ASSIGNMENT: "corrected"})

    assert ruled.admin.read(name)["metadata"]["annotations"] == {ASSIGNMENT: "corrected"}


def test_the_agent_publishes_what_its_node_has(ruled: Ruled, tmp_path: Path) -> None:
    """There is no kubelet here; its rights are about pods and the node."""
    name = ruled.given({ASSIGNMENT: "true"})
    uid = ruled.admin.read(name)["metadata"]["uid"]
    process = tmp_path / "proc/7/cgroup"
    process.parent.mkdir(parents=True)
    process.write_text(f"0::/kubepods/pod{uid}/abc\n")
    cards = tmp_path / "cards.yaml"
    cards.write_text("cards: [{index: 0, memoryMib: 16384, gpu: 40, processes: [{pid: 7}]}]")
    token = ruled.token(ruled.agents, of_pod_on=ruled.here)
    kubeconfig = ruled.plane.kubeconfig_for(ruled.agents, token)
    options = {
        "--node": ruled.here,
        "--kubeconfig": str(kubeconfig),
        "--devices": "nvidia=2x16384MiB",
        "--device-plugins": str(tmp_path),
        "--pod-resources": str(tmp_path / "kubelet.sock"),
        "--listen": f"127.0.0.1:{free_ports(1)[0]}",
        "--root": str(tmp_path),
        "--profile-file": str(cards),
        "--profile-period": "1",
    }
    command = [sys.executable, "-m", "bayplan", "agent"]
    command += [f"{name}={value}" for name, value in options.items()]
    agent = Process("agent", command, tmp_path / "agent.log")
    path = f"/api/v1/nodes/{ruled.here}"
    try:
        until(lambda: INVENTORY in ruled.admin.ask("GET", path)["metadata"].get("annotations", {}))
        until(lambda: MEMORY in ruled.admin.ask("GET", path)["status"]["capacity"])
        until(lambda: CARD in ruled.admin.ask("GET", path)["metadata"]["annotations"])
        util = f"ai.centaurus.io/{ruled.here}-gpu-0_util"
        until(lambda: util in ruled.admin.read(name)["metadata"]["annotations"])
    finally:
        agent.stop()

    assert "forbidden" not in agent.log.read_text()
