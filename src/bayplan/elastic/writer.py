"""Carries steps out: each is one or a few requests that may be repeated without harm.

A status is written only if the job is still as it was read. Before pods are made or removed the
job is read afresh: the grant must be the one that the step was planned for, so a cache that lags
behind makes nobody too many. Nothing is sent without the lease.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.elastic import horovod, workers
from bayplan.elastic.cluster import GROUPS, JOBS, SERVICES, STATEFUL_SETS, Cluster, owner_of
from bayplan.elastic.seen import (
    MakeLauncher,
    MakeWorkers,
    RemovePods,
    Scale,
    Step,
    TearDown,
    Write,
)
from bayplan.kube.client import PODS, Client, Resource
from bayplan.kube.elastic import GENERAL, RESOURCES, Grant, Job, horovod_names, read_job
from bayplan.kube.transport import JSON, MERGE_PATCH, ApiError

Json = dict[str, Any]

OWNER = {"fieldManager": "bayplan-elastic"}
CONFIG_MAPS = Resource("", "v1", "configmaps")


class Unowned(ApiError):
    """What the job needs bears a name that something has which nobody owns: it does not count as
    the job's, and nobody will remove it."""


class Stale(Exception):
    """The job is not any more what the step was planned for."""


def _merged(job: Job, grant: Grant) -> Json:
    """As a merge patch has it: counts that are no more must be named."""
    counts = dict.fromkeys(job.grant.counts, None) | grant.counts
    numbers = {"generation": grant.generation, "workers": grant.workers, "passing": grant.passing}
    return {"grant": {**numbers, "counts": counts}}


class Writer:
    def __init__(self, client: Client, cluster: Cluster, fence: Callable[[], None]) -> None:
        """`fence` raises `Fenced` when we may not write."""
        self._client, self._cluster, self._fence = client, cluster, fence
        self.counts: Counter[str] = Counter()

    async def carry_out(self, step: Step) -> None:
        """`Stale`, `ApiError`, `TransportError` or `Fenced` when it cannot be done."""
        match step:
            case Write(job, grant, fields):
                await self._write(job, fields | ({} if grant is None else _merged(job, grant)))
            case MakeWorkers(job, indices, together):
                await self._look(job, makes=True)
                for index in indices:
                    body = await self._create(PODS, workers.worker(job, index, together))
                    self._cluster.take_pod(body)
            case RemovePods(job, pods, unchanged):
                await self._look(job, makes=False)
                for pod in pods:
                    only = {"uid": pod.uid}
                    if unchanged:
                        only["resourceVersion"] = pod.version
                    now = pod.state == "lost"  # no kubelet is there to say that it is gone
                    await self._delete(PODS, job.namespace, pod.name, only, now)
            case MakeLauncher(job):
                manifest = await self._look(job, makes=True)
                if job.kind == GENERAL:
                    self._cluster.take_pod(await self._create(PODS, workers.launcher(job)))
                else:
                    await self._ensure(JOBS, horovod.launcher(job, manifest))
            case Scale(job, replicas):
                await self._scale(job, replicas)
            case TearDown(job):
                names = horovod_names(job.name)
                await self._delete(SERVICES, job.namespace, names["service"])
                await self._delete(STATEFUL_SETS, job.namespace, names["workers"])
        self.counts[type(step).__name__] += 1

    async def _write(self, job: Job, fields: Json) -> None:
        patch = {"metadata": {"resourceVersion": job.version, "uid": job.uid}, "status": fields}
        path = RESOURCES[job.kind].path(job.namespace, job.name, "status")
        self._cluster.take_job(job.kind, await self._send("PATCH", path, patch))

    async def _look(self, job: Job, makes: bool) -> Json:
        path = RESOURCES[job.kind].path(job.namespace, job.name)
        manifest = await self._find(path, job.key)
        fresh = read_job(job.kind, manifest)
        same = (fresh.uid, fresh.grant) == (job.uid, job.grant) and not fresh.leaving
        confirmed = fresh.confirmed
        kept = (
            confirmed.generation == job.grant.generation and confirmed.workers >= job.grant.workers
        )
        if not same or (makes and (not kept or fresh.suspend or fresh.wrong)):
            raise Stale(f"{job.key} has changed")
        return manifest

    async def _find(self, path: str, name: str) -> Json:
        try:
            found: Json = msgspec.json.decode(await self._client.request("GET", path))
            return found
        except ApiError as error:
            if error.status != 404:
                raise
            raise Stale(f"{name} is gone") from None

    async def _scale(self, job: Job, replicas: int) -> None:
        """What the workers need is there before they are."""
        names = horovod_names(job.name)
        await self._look(job, makes=replicas == job.grant.workers and replicas > 0)
        await self._ensure(CONFIG_MAPS, horovod.scripts(job))
        await self._ensure(SERVICES, horovod.service(job))
        if not await self._ensure(GROUPS, horovod.group(job)):
            await self._patch(GROUPS, job, names["group"], {"spec": horovod.group_spec(job)})
        if not await self._ensure(STATEFUL_SETS, horovod.stateful_set(job, replicas)):
            spec = {"spec": {"replicas": replicas}}
            body = await self._patch(STATEFUL_SETS, job, names["workers"], spec)
            self._cluster.take_set(body)

    async def _patch(self, resource: Resource, job: Job, name: str, patch: Json) -> bytes:
        return await self._send("PATCH", resource.path(job.namespace, name), patch)

    async def _create(self, resource: Resource, manifest: Json) -> bytes:
        path = resource.path(manifest["metadata"]["namespace"])
        return await self._send("POST", path, manifest)

    async def _ensure(self, resource: Resource, manifest: Json) -> bool:
        """Whether it was made now. `Stale` while one is in the way that is about to go, as what
        belongs to a deleted job of the same name is."""
        try:
            await self._create(resource, manifest)
            return True
        except ApiError as error:
            if error.status != 409:
                raise
            taken = error
        if not (wanted := owner_of(manifest)):
            return False
        about = manifest["metadata"]
        path = resource.path(about["namespace"], about["name"])
        found = await self._find(path, about["name"])
        owner = owner_of(found)
        if owner not in ("", wanted) or found["metadata"].get("deletionTimestamp"):
            raise Stale(f"{about['name']} is still there, of another")
        if not owner and resource in (JOBS, STATEFUL_SETS):
            raise Unowned(taken.status, taken.reason, taken.message)
        labels = found["metadata"].get("labels") or {}
        if not about["labels"].items() <= labels.items():  # else no watch would bring it
            await self._send("PATCH", path, {"metadata": {"labels": about["labels"]}})
        return False

    async def _delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        only: Json | None = None,
        now: bool = False,
    ) -> None:
        """`only`: preconditions."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if only:
            options["preconditions"] = only
        else:
            options["propagationPolicy"] = "Background"
        if now:
            options["gracePeriodSeconds"] = 0
        try:
            await self._send("DELETE", resource.path(namespace, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _send(self, method: str, path: str, content: Json) -> bytes:
        return await self._client.request(
            method,
            path,
            params=OWNER if method != "DELETE" else None,
            body=msgspec.json.encode(content),
            content_type=MERGE_PATCH if method == "PATCH" else JSON,
            before_send=self._fence,
        )
