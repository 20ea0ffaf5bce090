"""Claims that wait for their first pod: told its node, waited for, and given up."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model.effects import Placement
from bayplan.core.model.events import (
    ClaimGone,
    ClaimSeen,
    Event,
    NodeGone,
    NodeSeen,
    PodGone,
    VolumeSeen,
)
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.model.volumes import Claim, Volume
from bayplan.kube.client import Client
from bayplan.kube.transport import Fenced, Params, Response, Stream, TransportError
from bayplan.scheduler.volumes import KnownClaims, NotReady, VolumeBinder
from bayplan.testing.world import HOSTNAME, node, pod
from tests.kube_net.manual_clock import ManualClock

DATA = Claim("prod", "data", "uid-data", storage_class="fast")
POD = pod("web", namespace="prod", claims=("prod/data",))
HERE = (NodeTerm((Requirement(HOSTNAME, "In", ("a",)),)),)
ELSEWHERE = (NodeTerm((Requirement(HOSTNAME, "In", ("b",)),)),)
CHOSEN = replace(DATA, selected_node="a")
BOUND = replace(CHOSEN, volume="disk", completed=True)


class Api:
    """Answers every request alike, and remembers what was asked."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[tuple[str, str, Any, str]] = []
        self.broken = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = "",
        timeout_s: float = 0,
        before_send: Callable[[], None] | None = None,
    ) -> Response:
        if before_send is not None:
            before_send()
        if self.broken:
            raise TransportError("no route to host", sent=False)
        self.asked.append((method, path, json.loads(body or b"null"), content_type))
        return Response(self.status, {}, b'{"message":"persistentvolumeclaims is forbidden"}')

    def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = 0
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


class Stage:
    """An engine, an API and a clock; `tell` is what the watches say."""

    def __init__(self, *claims: Claim, status: int = 200) -> None:
        self.api, self.clock, self.engine = Api(status), ManualClock(), Engine()
        self.known = KnownClaims(self.engine)
        client = Client(self.api, self.clock, random.Random(1))
        self.binder = VolumeBinder(client, self.known, self.clock, self.check)
        self.is_fenced = False
        self.tell(NodeSeen(node("a")))
        for claim in claims:
            self.tell(ClaimSeen(claim))

    def check(self) -> None:
        if self.is_fenced:
            raise Fenced("too late")

    def tell(self, event: Event) -> None:
        self.known.step(event, 0.0, self.engine.handle(event, 0.0))

    async def prepare(self, *then: Event | Callable[[], Awaitable[None]]) -> None:
        """Prepares the pod while this happens, one after the other."""
        task = asyncio.create_task(self.binder.prepare(Placement(POD, "a")))
        for each in then:
            await settle()
            assert not task.done()
            if isinstance(each, Event):
                self.tell(each)
            else:
                await each()
        async with asyncio.timeout(5):
            await task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def ready(stage: Stage, *then: Event) -> None:
    asyncio.run(stage.prepare(*then))
    assert not stage.known._following


def why_not(stage: Stage, *then: Event | Callable[[], Awaitable[None]]) -> str:
    with pytest.raises(NotReady) as error:
        asyncio.run(stage.prepare(*then))
    assert not stage.known._following
    return str(error.value)


def test_claims_that_are_bound_need_nothing() -> None:
    stage = Stage(BOUND)
    ready(stage)
    assert stage.api.asked == []


def test_a_claim_is_told_its_node_and_waited_for() -> None:
    stage = Stage(DATA)
    ready(stage, ClaimSeen(CHOSEN), VolumeSeen(Volume("disk", HERE)), ClaimSeen(BOUND))

    metadata = {"uid": "uid-data", "annotations": {"volume.kubernetes.io/selected-node": "a"}}
    path = "/api/v1/namespaces/prod/persistentvolumeclaims/data"
    assert stage.api.asked == [
        ("PATCH", path, {"metadata": metadata}, "application/merge-patch+json")
    ]


def test_the_volume_may_be_seen_after_the_claim_is_bound() -> None:
    ready(Stage(DATA), ClaimSeen(CHOSEN), ClaimSeen(BOUND), VolumeSeen(Volume("disk")))


def test_a_claim_that_has_the_node_already_is_only_waited_for() -> None:
    stage = Stage(CHOSEN)
    ready(stage, VolumeSeen(Volume("disk")), ClaimSeen(BOUND))
    assert stage.api.asked == []


def test_news_from_before_our_annotation_is_no_failure() -> None:
    older = replace(DATA, access_modes=("ReadWriteOnce",))
    then = (ClaimSeen(CHOSEN), VolumeSeen(Volume("disk")), ClaimSeen(BOUND))
    ready(Stage(DATA), ClaimSeen(older), *then)


def test_an_annotation_that_goes_means_that_it_could_not_be_made() -> None:
    said = why_not(Stage(DATA), ClaimSeen(CHOSEN), ClaimSeen(DATA))
    assert said == 'binding volumes: provisioning failed for PVC "data"'


def test_an_annotation_that_comes_and_goes_at_once_is_noticed() -> None:
    stage = Stage(DATA)

    async def both() -> None:
        stage.tell(ClaimSeen(CHOSEN))
        stage.tell(ClaimSeen(DATA))

    assert why_not(stage, both) == 'binding volumes: provisioning failed for PVC "data"'


def test_a_volume_that_the_node_cannot_use_is_refused() -> None:
    there = VolumeSeen(Volume("disk", ELSEWHERE))
    said = why_not(Stage(DATA), ClaimSeen(CHOSEN), there, ClaimSeen(BOUND))
    assert said == 'binding volumes: pv "disk" node affinity doesn\'t match node "a"'


def test_ten_minutes_are_enough() -> None:
    stage = Stage(DATA)

    async def almost() -> None:
        stage.clock.advance(599)

    async def over() -> None:
        stage.clock.advance(1)

    said = why_not(stage, ClaimSeen(CHOSEN), almost, over)
    assert said == "binding volumes: not done after 600 s"


def test_whoever_is_gone_is_not_waited_for() -> None:
    gone = "binding volumes: pod does not exist any more"
    assert why_not(Stage(DATA), PodGone("uid-web")) == gone
    lost = 'binding volumes: persistentvolumeclaim "data" is gone'
    assert why_not(Stage(DATA), ClaimGone("prod/data")) == lost
    assert why_not(Stage(DATA), ClaimSeen(replace(DATA, uid="another"))) == lost
    assert why_not(Stage(), *()) == 'persistentvolumeclaim "data" not found'
    said = why_not(Stage(DATA), NodeGone("a"), ClaimSeen(CHOSEN))
    assert said == 'binding volumes: node "a" is gone'


def test_a_claim_of_another_node_is_left_alone() -> None:
    stage = Stage(replace(DATA, selected_node="b"))
    assert why_not(stage) == 'persistentvolumeclaim "data" is made for node "b"'
    assert stage.api.asked == []
    said = why_not(Stage(DATA), ClaimSeen(replace(DATA, selected_node="b")))
    assert said == 'binding volumes: PVC "data" was taken to another node'


def test_what_the_server_says_is_told() -> None:
    said = why_not(Stage(DATA, status=403))
    assert said == (
        'persistentvolumeclaim "data" cannot be told its node: '
        "persistentvolumeclaims is forbidden (403)"
    )
    stage = Stage(DATA)
    stage.api.broken = True
    assert "no route to host" in why_not(stage)


def test_nothing_is_written_behind_the_fence() -> None:
    stage = Stage(DATA)
    stage.is_fenced = True
    with pytest.raises(Fenced):
        asyncio.run(stage.prepare())
    assert stage.api.asked == []
