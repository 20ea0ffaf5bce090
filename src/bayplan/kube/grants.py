"""What elastic jobs were granted, as their statuses say it.

The shape of a worker comes from the job's own template, defaulted as the API server would do it;
what only the server knows of it (a priority class, a runtime class's overhead) is not in it, nor
are claims of ephemeral volumes, which come to be with each worker. A job that cannot be understood
says why in `wrong`, and has no places.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.pods import Pod, RowKey, Worker
from bayplan.kube.defaults import default_pod
from bayplan.kube.elastic import DEFAULT_SCHEDULER, MOST, Job, read_job
from bayplan.kube.read import Reader, Source, Unreadable

MOST_NODES = 5_000  # that the status may name
OWN = ("priorityClassName", "priority", "runtimeClassName")  # known to the API server only


def grant_of(kind: str, source: Source, reader: Reader) -> Grant:
    """The grant of a job of the kind."""
    try:
        manifest = source if isinstance(source, Mapping) else msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(kind, "", str(error)) from None
    if not isinstance(manifest, Mapping):
        raise Unreadable(kind, "", "it is no object")
    job = read_job(kind, dict(manifest))
    grant = Grant(
        job.key,
        job.grant.generation,
        job.grant.places,
        _unknown(job),
        replace(_confirmed(job), kept=_kept(manifest.get("status"))),
        job.wrong,
        job.uid,
    )
    if not grant.wrong and grant.places > 2 * MOST:
        return replace(grant, wrong=f"{job.key}: status.grant: more than {2 * MOST} places")
    try:
        return grant if grant.wrong else replace(grant, pod=_worker(job, reader))
    except Unreadable as error:
        return replace(grant, wrong=f"{job.key}: its template: {error.field}: {error.why}")


def _worker(job: Job, reader: Reader) -> Pod:
    spec = {name: value for name, value in job.template["spec"].items() if name not in OWN}
    if isinstance(volumes := spec.get("volumes"), list):  # claims that come with each worker
        spec["volumes"] = [each for each in volumes if not _is_ephemeral(each)]
    metadata = {**job.template["metadata"], "name": job.name, "namespace": job.namespace}
    pod = reader.pod(default_pod({"metadata": metadata, "spec": spec}), newcomer=True)
    return replace(pod, uid=job.key, created_s=job.arrival, worker=Worker(job.key))


def _is_ephemeral(volume: Any) -> bool:
    return isinstance(volume, dict) and bool(volume.get("ephemeral"))


def _unknown(job: Job) -> Pod:
    """In place of a worker that nobody can say anything of."""
    named = (job.template.get("spec") or {}).get("schedulerName")
    scheduler = named if isinstance(named, str) else DEFAULT_SCHEDULER
    return Pod(job.key, job.namespace, job.name, {}, RowKey(), scheduler=scheduler)


def _confirmed(job: Job) -> Confirmed:
    said = job.confirmed
    return Confirmed(said.generation, said.workers, why=said.message)


def _kept(status: Any) -> tuple[tuple[str, int], ...]:
    """A hint, so whatever is odd in it is left out."""
    said = status.get("confirmed") if isinstance(status, dict) else None
    listed = said.get("kept") if isinstance(said, dict) else None
    found: dict[str, int] = {}
    for each in listed[:MOST_NODES] if isinstance(listed, list) else ():
        node, count = (each.get("node"), each.get("workers")) if isinstance(each, dict) else (0, 0)
        if isinstance(node, str) and type(count) is int and 0 < count <= MOST:
            found[node] = count
    return tuple(sorted(found.items()))
