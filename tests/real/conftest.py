"""One real control plane for all tests here; a test keeps to its own namespace and node names."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.testing.binaries import PACKAGES, find
from bayplan.testing.controlplane import ControlPlane, User
from tests.embedded import EmbeddedPlane, Plane

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test may have to build the control plane: set-up has no time limit here."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Running, with the admin and a user `nobody` who has no rights."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():  # a build is long, and says how far it is
        for name in PACKAGES:
            find(name)
    with ControlPlane(users=[User("nobody")]) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace. It stays: no controller is there to delete it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPlane]:
    with EmbeddedPlane(tmp_path_factory.mktemp("embedded")) as plane:
        yield plane


@pytest.fixture(params=["real", "embedded"])
def plane(request: pytest.FixtureRequest) -> Iterator[Plane]:
    """Either back end, without any pod or node, before and after."""
    name = "control_plane" if request.param == "real" else "embedded"
    found: Plane = request.getfixturevalue(name)
    found.wipe()
    yield found
    found.wipe()


@pytest.fixture
def wiped(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane without any pod or node, before and after."""
    control_plane.wipe()
    yield control_plane
    control_plane.wipe()
