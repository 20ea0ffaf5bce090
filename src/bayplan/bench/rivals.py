"""Who plays the stories of `gang_stories`: how each is started, and how it is told of a gang.

- `bayplan`: `bayplan run`, which keeps places for a gang that has waited for long; gangs are
  annotations of their pods.
- `coscheduling`: kube-scheduler with the Coscheduling plugin of scheduler-plugins, built from the
  Go module in coscheduling/; a gang is a PodGroup, and its pods carry a label.
- `kube_scheduler`: kube-scheduler as it is, to which a gang is so many single pods.
"""

import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from bayplan.bench.cluster import NAMESPACE
from bayplan.bench.contenders import BAYPLAN_RUN, KUBE_SCHEDULER, Running, start_bayplan
from bayplan.bench.live_gangs import GANG, GANG_MIN
from bayplan.testing import gotool
from bayplan.testing.controlplane import (
    SCHEDULER_CLIENT,
    ControlPlane,
    ControlPlaneError,
    Process,
    Refused,
)

SOURCES = Path(__file__).resolve().parent / "coscheduling"
NAME = "coscheduling"
GROUP = "scheduling.x-k8s.io"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_GROUPS = f"/apis/{GROUP}/v1alpha1/namespaces/{NAMESPACE}/podgroups"
# How long members that have a place wait for the others. It is 10 in the example that comes with
# the plugin, and 60 where nothing is said.
PERMIT_S = 10
# How long a gang is refused before Bayplan keeps places for it: three times as long as pods that
# have a place wait for the others in Coscheduling. The default, 5 minutes, is longer than a story.
RESERVE_AFTER_S = 30.0
SERVED_S = 30.0
POLL_S = 0.1

Json = dict[str, Any]


class Rival(Struct, frozen=True):
    key: str  # as in the report
    scheduler: str  # the schedulerName of its pods
    start: Callable[[ControlPlane], Running]
    marks: Callable[[str, int], Json]  # metadata of a member of that gang with so many members
    announce: Callable[[ControlPlane, str, int], None] = lambda plane, gang, size: None


def bayplan(config: Path | None, reserve_after_s: float = RESERVE_AFTER_S) -> Rival:
    """With a configuration, where one is given; else it keeps places for a gang after so long."""
    if config is None:
        start = functools.partial(start_reserving, after_s=reserve_after_s)
    else:
        start = functools.partial(start_bayplan, config=config)
    return Rival(BAYPLAN_RUN.key, BAYPLAN_RUN.scheduler, start, annotations)


def start_reserving(plane: ControlPlane, after_s: float) -> Running:
    path = plane.directory / "bayplan.json"
    config = {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "BayplanConfiguration",
        "gangs": {"reserveAfter": f"{after_s:g}s"},
    }
    path.write_text(json.dumps(config, indent=2))
    return start_bayplan(plane, path)


def annotations(gang: str, size: int) -> Json:
    return {"annotations": {GANG: gang, GANG_MIN: str(size)}}


def kube_scheduler() -> Rival:
    start = KUBE_SCHEDULER.start
    return Rival(KUBE_SCHEDULER.key, KUBE_SCHEDULER.scheduler, start, lambda gang, size: {})


def coscheduling(say: gotool.Say) -> Rival:
    """Builds it where it was not built before; a GoError says why it cannot be had."""
    start = functools.partial(start_coscheduling, binary=build(say))
    return Rival(NAME, NAME, start, label, add_pod_group)


def label(gang: str, size: int) -> Json:
    return {"labels": {f"{GROUP}/pod-group": gang}}


def add_pod_group(plane: ControlPlane, gang: str, size: int) -> None:
    found = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": gang},
        "spec": {"minMember": size},
    }
    plane.request("POST", POD_GROUPS, found)


def start_coscheduling(plane: ControlPlane, binary: Path) -> Running:
    """Configured as the example that comes with the plugin, and as fast as kube-scheduler here."""
    define_pod_groups(plane)
    only = {"enabled": [{"name": "Coscheduling"}]}
    arguments = {"permitWaitingTimeSeconds": PERMIT_S}
    profile = {
        "schedulerName": NAME,
        "plugins": {"multiPoint": only, "queueSort": {**only, "disabled": [{"name": "*"}]}},
        "pluginConfig": [{"name": "Coscheduling", "args": arguments}],
    }
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig), **SCHEDULER_CLIENT},
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
    }
    path, log = plane.directory / f"{NAME}.json", plane.directory / f"{NAME}.log"
    path.write_text(json.dumps(config, indent=2))
    log.unlink(missing_ok=True)
    process = Process(NAME, [str(binary), f"--config={path}", "--secure-port=0"], log)
    started = b"Starting Kubernetes Scheduler"
    return Running(process, lambda: started in log.read_bytes())


def define_pod_groups(plane: ControlPlane) -> None:
    """The kind PodGroup, with any content; returns when the API server knows it."""
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "subresources": {"status": {}},
    }
    kind = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    try:
        plane.request("POST", CRDS, kind)
    except Refused as refused:
        if refused.status != 409:  # it is there already
            raise
    deadline = time.monotonic() + SERVED_S
    while not is_served(plane):
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"the API server does not serve {POD_GROUPS}")
        time.sleep(POLL_S)


def is_served(plane: ControlPlane) -> bool:
    try:
        plane.request("GET", POD_GROUPS)
    except Refused:
        return False
    return True


def build(say: gotool.Say) -> Path:
    """The program, from the user's cache if these very sources were built before."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    folder = gotool.cache_dir() / NAME
    target = folder / digest.hexdigest() / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with gotool.alone(folder / "lock", say):
        if not target.exists():
            say(f"{NAME}: building it, the first time takes minutes")
            gotool.build(gotool.Package(".", SOURCES, "-s -w"), target, say)
    return target
