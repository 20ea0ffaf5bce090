"""What a step is in words: a line for the log, and an event for its job's owner.

Events are sent by a task of their own and never wait for: of each job and reason one at a time is
kept to be sent, the newest. What cannot be sent is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from bayplan.elastic.seen import MakeWorkers, RemovePods, Scale, Step, Write
from bayplan.kube.client import EVENTS, Client
from bayplan.kube.elastic import RESOURCES, Grant, Job
from bayplan.kube.transport import ApiError, Fenced, TransportError

log = logging.getLogger("bayplan")

REPORTER = "bayplan-elastic"
MOST_KEPT = 1000  # events that wait to be sent
LONGEST_NAME, LONGEST_NOTE = 200, 1000


class Told(Struct, frozen=True):
    """`reason`: of an event; "": it is nothing for its owner."""

    words: str
    level: int = logging.DEBUG
    reason: str = ""


def told(step: Step) -> Told:
    match step:
        case Write(job, grant, fields):
            return _written(job, grant, fields)
        case MakeWorkers(_, indices):
            return Told(f"makes workers {', '.join(map(str, indices))}")
        case RemovePods(_, pods):
            return Told(f"removes {', '.join(pod.name for pod in pods)}")
        case Scale(_, replicas):
            return Told(f"scales its stateful set to {replicas}")
    return Told({"MakeLauncher": "makes its launcher"}.get(type(step).__name__, "is cleared away"))


def _written(job: Job, grant: Grant | None, fields: dict[str, Any]) -> Told:
    phase = fields.get("phase")
    over = phase == "Finishing" or job.status.phase in ("Finishing", "Complete", "Failed")
    if phase == "Complete":
        return Told("is complete", logging.INFO, "Completed")
    if phase == "Failed":
        why = fields.get("message") or job.status.message or "no more is known"
        return Told(f"has failed: {why}", logging.INFO, "Failed")
    if grant is not None and over:
        return Told(f"gives back all but {grant.places} places")
    if grant is not None:
        return _granted(job.grant, grant)
    if "startTime" in fields:
        return Told(f"has started with {job.grant.workers} workers", logging.INFO)
    return Told(f"status: {', '.join(fields)}")


def _granted(before: Grant, now: Grant) -> Told:
    if now.workers == before.workers:
        return Told(f"keeps {now.passing} places to pass them on")
    if not before.workers:
        return Told(f"is granted {now.workers} workers", logging.INFO, "Granted")
    grows = now.workers > before.workers
    words = f"{'grows' if grows else 'shrinks'} from {before.workers} to {now.workers} workers"
    return Told(words, logging.INFO, "Grown" if grows else "Shrunk")


class Events:
    def __init__(self, client: Client, fence: Callable[[], None], instance: str) -> None:
        self._client, self._fence, self._instance = client, fence, instance
        self._kept: dict[tuple[str, str], tuple[Job, Told]] = {}  # by uid and reason
        self._some = asyncio.Event()

    def say(self, job: Job, about: Told) -> None:
        slot = job.uid, about.reason
        if about.reason and (slot in self._kept or len(self._kept) < MOST_KEPT):
            self._kept[slot] = job, about
            self._some.set()

    async def run(self) -> NoReturn:
        while True:
            await self._some.wait()
            while self._kept:
                job, about = self._kept.pop(next(iter(self._kept)))
                try:
                    await self._send(job, about)
                except (ApiError, TransportError, Fenced) as error:
                    log.debug("%s: an event is lost: %s", job.key, error)
            self._some.clear()

    async def _send(self, job: Job, about: Told) -> None:
        wall, kind = self._client.clock.wall(), RESOURCES[job.kind]
        at = datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{job.name[:LONGEST_NAME]}.{about.reason.lower()}.{int(wall * 1e6):x}",
                "namespace": job.namespace,
            },
            "eventTime": at.replace("+00:00", "Z"),
            "reportingController": REPORTER,
            "reportingInstance": self._instance[:128],
            "action": "Resize",
            "reason": about.reason,
            "type": "Warning" if about.reason == "Failed" else "Normal",
            "regarding": {
                "apiVersion": f"{kind.group}/{kind.version}",
                "kind": job.kind,
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
            },
            "note": f"The job {about.words}."[:LONGEST_NOTE],
        }
        path = EVENTS.path(job.namespace)
        body = msgspec.json.encode(event)
        await self._client.request("POST", path, body=body, before_send=self._fence)
