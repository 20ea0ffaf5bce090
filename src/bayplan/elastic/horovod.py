"""Manifests of what belongs to an ElasticHorovodJob, named and labelled as the original does it.

Pure. The secret `horovod-sshkeys` is the user's own to make.
"""

from typing import Any

from bayplan.elastic.workers import named
from bayplan.kube.elastic import (
    GPU,
    JOB_LABEL,
    SSH_PORT,
    Job,
    horovod_names,
)
from bayplan.kube.wire import OLD_GROUP_LABEL

Json = dict[str, Any]

SCRIPTS = "ai-horovod-discover-hosts"
# The service's name stands for every worker that answers; each has one GPU.
DISCOVER = """#!/bin/sh
# Prints host:slots for every worker that the service SERVICENAME knows now.
getent ahostsv4 SERVICENAME | awk '{ print $1 }' | sort -u | sed 's/$/:1/'
"""


def service(job: Job) -> Json:
    selector = {"ElasticHorovodJob": job.name, "role": "worker"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _labelled(job, "service"),
        "spec": {"clusterIP": "None", "selector": selector},
    }


def scripts(job: Job) -> Json:
    """Shared by all jobs of the namespace, so it belongs to none."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SCRIPTS, "namespace": job.namespace},
        "data": {"discover_hosts.sh": DISCOVER},
    }


def group(job: Job) -> Json:
    """With the least number of workers: with the present one, as the original has it, a node's
    death would end the whole group."""
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": _labelled(job, "group"),
        "spec": group_spec(job),
    }


def group_spec(job: Job) -> Json:
    least = min(job.minimum, job.grant.workers or job.minimum)  # more will not come
    if job.fixed is not None:
        least = min(least, job.fixed)
    return {"minMember": max(least, 1), "minResources": {GPU: str(max(least, 1))}}


def stateful_set(job: Job, replicas: int) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _labelled(job, "workers"),
        "spec": {
            "serviceName": horovod_names(job.name)["service"],
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"ElasticHorovodJob": job.name, "role": "worker"}},
            "template": job.template,
        },
    }


def launcher(job: Job, manifest: Json) -> Json:
    """`horovodrun`, once the least number of workers is ready."""
    names, given = horovod_names(job.name), manifest["spec"]["launcherSpec"]
    command = " ".join(given.get("pythonCommand") or ())
    script = (
        "mkdir -p /root/.ssh; cp /etc/secrets/* /root/.ssh/; "
        "chmod 644 /root/.ssh/authorized_keys; mkdir -p /scripts; cp /etc/scripts/* /scripts/; "
        f"sed -i 's/SERVICENAME/{names['service']}/' /scripts/discover_hosts.sh; "
        f"horovodrun -p {SSH_PORT} -np {job.minimum} --max-np {job.maximum} "
        f"--host-discovery-script /scripts/discover_hosts.sh {command}"
    )
    container = {
        "name": "launcher",
        "image": given["image"],
        "command": ["/bin/sh"],
        "args": ["-c", script],
        "volumeMounts": [
            {"name": "sshkeys", "mountPath": "/etc/secrets"},
            {"name": "scripts", "mountPath": "/etc/scripts"},
        ],
    }
    keys = {"secretName": "horovod-sshkeys", "defaultMode": 0o600}
    pod = {
        "schedulerName": job.template["spec"]["schedulerName"],
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "sshkeys", "secret": keys},
            {"name": "scripts", "configMap": {"name": SCRIPTS, "defaultMode": 0o744}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _labelled(job, "launcher"),
        "spec": {
            "backoffLimit": 1,
            "template": {"metadata": {"labels": {OLD_GROUP_LABEL: names["group"]}}, "spec": pod},
        },
    }


def _labelled(job: Job, what: str) -> Json:
    """Our label is on what we watch by it; pods have the original's."""
    return {**named(job, horovod_names(job.name)[what]), "labels": {JOB_LABEL: job.name}}
