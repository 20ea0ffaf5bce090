"""A control plane for the tests that run a real kubelet, or a word why there is none."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bayplan.testing.binaries import PACKAGES, find
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.gotool import tell
from bayplan.testing.node import Node, node_user, why_not
from bayplan.testing.nodeparts import Parts, find_parts
from tests.real.node.kubelets import Kubelet, RealKubelet
from tests.real.node.standin import StandIn

NAMES = (
    "smoke",
    "devices",
    "neuron",
    "vipu",
    "zones",
)  # of nodes that tests may start, each in one test


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A line for whoever runs the tests, past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None

    def said(line: str) -> None:
        with capture.global_and_fixture_disabled():
            tell(line)

    return said


@pytest.fixture(scope="session")
def no_kubelet(say: Callable[[str], None]) -> str | None:
    """Why no kubelet can run here, said once; None when one can."""
    reason = why_not()
    say(f"no real kubelet: {reason}" if reason else "a real kubelet, with real containers")
    return reason


@pytest.fixture(scope="session")
def parts(no_kubelet: str | None, say: Callable[[str], None]) -> Parts | None:
    return None if no_kubelet else find_parts(say)


@pytest.fixture(scope="session")
def node_plane(parts: Parts | None, say: Callable[[str], None]) -> Iterator[ControlPlane]:
    """It knows the kubelets of NAMES."""
    for name in PACKAGES:
        find(name, say=say)
    with ControlPlane(users=[node_user(name) for name in NAMES]) as plane:
        yield plane


@pytest.fixture(scope="session")
def kubelet_of(
    node_plane: ControlPlane, parts: Parts | None, no_kubelet: str | None
) -> Callable[[str], AbstractContextManager[Kubelet]]:
    """A node of NAMES with its kubelet, or a stand-in where none can run."""

    @contextmanager
    def started(name: str) -> Iterator[Kubelet]:
        if no_kubelet:
            with (
                tempfile.TemporaryDirectory() as folder,  # sockets have short paths
                StandIn(node_plane, name, Path(folder)) as standin,
            ):
                yield standin
        else:
            with Node(node_plane, name, parts) as node:
                yield RealKubelet(node)

    return started
