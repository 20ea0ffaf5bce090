"""Both back ends, each with a new namespace of the same kind."""

import uuid
from typing import NamedTuple

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.embedded import EmbeddedPlane
from tests.real.contract.exchange import Server


class Both(NamedTuple):
    real: Server
    embedded: Server


@pytest.fixture
def both(control_plane: ControlPlane, embedded: EmbeddedPlane) -> Both:
    name = f"test-{uuid.uuid4().hex[:8]}"
    for plane in (control_plane, embedded):
        plane.wipe()
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Both(Server(control_plane, name), Server(embedded, name))
