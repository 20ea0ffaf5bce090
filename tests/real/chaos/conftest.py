"""A control plane of their own for the tests here: they restart its API server, and it says who
bound what."""

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.testing.binaries import PACKAGES, find
from bayplan.testing.controlplane import ControlPlane, User
from tests.real.chaos.audit import AuditLog
from tests.real.chaos.replica import USERS, Replica, Start


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    return AuditLog(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest, audit: AuditLog) -> Iterator[ControlPlane]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():  # a build is long, and says how far it is
        for name in PACKAGES:
            find(name)
    users = [User(name, ("system:masters",)) for name in USERS]
    with ControlPlane(users=users, apiserver_args=audit.arguments()) as plane:
        yield plane


@pytest.fixture
def empty(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Without any pod or node, before and after."""
    plane.wipe()
    yield plane
    plane.wipe()


@pytest.fixture
def namespace(empty: ControlPlane) -> str:
    name = f"chaos-{uuid.uuid4().hex[:8]}"
    empty.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def rng() -> random.Random:
    """Another seed each time; `BAYPLAN_SEED=7` gives the same pods and moments again."""
    seed = int(os.environ.get("BAYPLAN_SEED") or random.randrange(1 << 30))
    print(f"BAYPLAN_SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.fixture
def start(plane: ControlPlane, tmp_path: Path) -> Iterator[Start]:
    """Starts replicas that end with the test: `start(name, kubeconfig=..., config=...)`."""
    replicas: list[Replica] = []

    def begin(name: str = "bayplan", kubeconfig: Path | None = None, config: Any = None) -> Replica:
        replica = Replica(name, kubeconfig or plane.kubeconfig, tmp_path, config)
        replicas.append(replica)
        return replica

    yield begin
    for replica in replicas:
        if replica.process.running:
            replica.kill()
