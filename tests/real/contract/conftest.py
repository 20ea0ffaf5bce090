"""Both back ends, each with a new namespace of the same kind."""

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.embedded import EmbeddedPlane
from tests.real.contract.exchange import Server


class Both(NamedTuple):
    real: Server
    embedded: Server


@pytest.fixture(scope="session")
def bare_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPlane]:
    """Without controllers, as the real one is."""
    with EmbeddedPlane(tmp_path_factory.mktemp("embedded"), controllers=False) as plane:
        yield plane


@pytest.fixture
def both(control_plane: ControlPlane, bare_embedded: EmbeddedPlane) -> Both:
    name = f"test-{uuid.uuid4().hex[:8]}"
    for plane in (control_plane, bare_embedded):
        plane.wipe()
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Both(Server(control_plane, name), Server(bare_embedded, name))
