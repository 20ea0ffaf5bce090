"""PriorityClasses and RuntimeClasses of a cluster complete the manifests of questions."""

import asyncio
import json
import random
from typing import Any

import pytest

from bayplan.core.model.pods import Pod
from bayplan.kube.client import Client
from bayplan.kube.read import Reader, Unreadable
from bayplan.kube.transport import Response
from bayplan.scheduler.classes import FRESH_S, KnownClasses

URGENT = {"metadata": {"name": "urgent"}, "value": 7, "preemptionPolicy": "Never"}
USUAL = {"metadata": {"name": "usual"}, "value": 3, "globalDefault": True}
VM = {"metadata": {"name": "vm"}, "overhead": {"podFixed": {"cpu": "2"}}}
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"


class Clock:
    now = 0.0

    def time(self) -> float:
        return self.now


class Server:
    """Answers lists, and counts."""

    def __init__(self) -> None:
        self.lists: dict[str, Any] = {PRIORITIES: [], RUNTIMES: []}
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: object) -> Response:
        assert method == "GET"
        self.asked.append(path)
        found = self.lists[path]
        if isinstance(found, int):
            return Response(found, {}, b'{"message":"no"}')
        return Response(200, {}, json.dumps({"items": found}).encode())


class Rig:
    def __init__(self) -> None:
        self.server, self.clock = Server(), Clock()
        client: Any = Client(self.server, self.clock, random.Random(1))  # type: ignore[arg-type]
        self.classes = KnownClasses(client)

    def pod(self, **spec: Any) -> Pod:
        asyncio.run(self.classes.refresh())
        manifest = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}], **spec}}
        return self.classes.pod(manifest, Reader())


def test_a_pod_gets_what_its_classes_say() -> None:
    rig = Rig()
    rig.server.lists |= {PRIORITIES: [URGENT, USUAL], RUNTIMES: [VM]}

    urgent = rig.pod(priorityClassName="urgent", runtimeClassName="vm")

    assert (urgent.priority, urgent.preempts) == (7, False)
    assert urgent.row.requests == (("cpu", 2000),)
    assert rig.pod().priority == 3
    assert rig.pod(priorityClassName="system-node-critical").priority == 2_000_001_000


def test_they_are_read_when_somebody_asks_and_again_after_a_minute() -> None:
    rig = Rig()
    for _ in range(3):
        rig.pod()
    assert rig.server.asked == [PRIORITIES, RUNTIMES]
    rig.server.lists[PRIORITIES] = [URGENT]
    with pytest.raises(Unreadable, match=r"spec\.priorityClassName: there is no 'urgent'"):
        rig.pod(priorityClassName="urgent")
    rig.clock.now += FRESH_S

    assert rig.pod(priorityClassName="urgent").priority == 7
    assert len(rig.server.asked) == 4


def test_what_cannot_be_read_is_not_guessed(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.server.lists |= {
        PRIORITIES: 403,
        RUNTIMES: [VM, {"metadata": {"name": "odd"}, "overhead": 1}],
    }

    with pytest.raises(Unreadable, match=r"priorityclasses cannot be read: .*no"):
        rig.pod(priorityClassName="urgent")
    with pytest.raises(Unreadable, match=r"spec\.runtimeClassName: there is no 'odd'"):
        rig.pod(runtimeClassName="odd")

    assert rig.pod(priorityClassName="urgent", priority=7, runtimeClassName="vm").priority == 7
    rig.clock.now += FRESH_S
    rig.pod()
    assert caplog.text.count("priorityclasses cannot be read for questions") == 1
    rig.server.lists |= {PRIORITIES: [URGENT], RUNTIMES: 500}
    rig.clock.now += FRESH_S
    assert rig.pod(priorityClassName="urgent", runtimeClassName="vm").priority == 7
