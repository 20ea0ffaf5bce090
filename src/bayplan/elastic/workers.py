"""Manifests of an ElasticJob's pods: workers by index, and the launcher. Pure."""

from typing import Any

from bayplan.kube.elastic import RESOURCES, Job
from bayplan.kube.wire import GANG, GANG_MIN

Json = dict[str, Any]


def worker(job: Job, index: int, together: bool = True) -> Json:
    """`together`: with the others. One that is made beside workers that run has a place of its own,
    and waits for nobody."""
    made = _pod(job, job.template, f"{job.name}-worker-{index}")
    if has_our_gang(job):
        least = min(job.minimum, job.grant.workers or job.minimum) if together else 1
        said = made["metadata"]["annotations"]
        made["metadata"]["annotations"] = {**said, GANG_MIN: str(least)}
    return made


def has_our_gang(job: Job) -> bool:
    """Whether how many start together is ours to say: no more than are granted."""
    said = job.template["metadata"]["annotations"]
    return (said.get(GANG), said.get(GANG_MIN)) == (job.name, str(job.minimum))


def launcher(job: Job) -> Json:
    assert job.launcher is not None
    return _pod(job, job.launcher, f"{job.name}-launcher")


def _pod(job: Job, template: Json, name: str) -> Json:
    """A pod that fails is made again by the controller, unless its owner says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **named(job, name)},
        "spec": {"restartPolicy": "Never", **template["spec"]},
    }


def named(job: Job, name: str) -> Json:
    """The metadata of something that belongs to the job, and goes with it."""
    resource = RESOURCES[job.kind]
    owner = {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": job.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "namespace": job.namespace, "ownerReferences": [owner]}
