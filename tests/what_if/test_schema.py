"""The API does what its OpenAPI document says, for requests that nobody would think of."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from bayplan.scheduler.questions import TYPES
from bayplan.testing import World
from bayplan.web.questions import openapi
from tests.what_if.served import HOST, Served

EXAMPLES = 1_000 if os.environ.get("BAYPLAN_PROVE") else 40

schema = schemathesis.openapi.from_dict(openapi(TYPES, "1"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    world = World(a=8, b=4)
    world.submit("big", 8)
    world.submit("waits", 16)
    with Served(world) as running:
        yield running


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
def test_every_request_is_answered_as_the_document_says(
    case: schemathesis.Case[Any], served: Served
) -> None:
    # A step that is wrong is told in its answer, and a manifest may be any object: so neither must
    # all that the document forbids be refused, nor all that it allows be taken.
    lenient: list[Any] = [negative_data_rejection, positive_data_acceptance]
    case.call_and_validate(f"http://{HOST}:{served.port}", excluded_checks=lenient)
