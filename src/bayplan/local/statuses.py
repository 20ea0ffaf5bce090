"""What a kubelet writes: how its node is, and how its pods are. Pure; nothing here talks."""

from typing import Any

from msgspec import Struct

Json = dict[str, Any]

VERSION = "v1.36.3"


class Seen(Struct, rename="camel"):
    """What a kubelet reads of a pod."""

    metadata: Json
    spec: Json
    status: Json = {}

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def node(self) -> str:
        return str(self.spec.get("nodeName") or "")

    @property
    def has_ended(self) -> bool:
        return self.status.get("phase") in ("Succeeded", "Failed")


class SeenNode(Struct, rename="camel"):
    metadata: Json
    spec: Json = {}
    status: Json = {}


def node_conditions(now: str, ready: str, reason: str, text: str) -> list[Json]:
    pressures = [
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ]
    said = [(sort, "False", why, words) for sort, why, words in pressures]
    return [
        {
            "type": sort,
            "status": status,
            "reason": why,
            "message": words,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for sort, status, why, words in [*said, ("Ready", ready, reason, text)]
    ]


def node_info(name: str) -> Json:
    unknown = dict.fromkeys(("machineID", "systemUUID", "bootID"), name)
    return {
        **unknown,
        "architecture": "amd64",
        "operatingSystem": "linux",
        "kernelVersion": "pretend",
        "osImage": "pretend",
        "containerRuntimeVersion": "pretend://1",
        "kubeletVersion": VERSION,
        "kubeProxyVersion": "",
    }


def _true(sort: str, now: str) -> Json:
    return {"type": sort, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}


def _containers(pod: Seen, state: Json, ready: bool, restarts: int = 0) -> list[Json]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "containerID": f"pretend://{pod.uid}/{container['name']}",
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "lastState": {},
            "state": state,
        }
        for container in pod.spec.get("containers") or ()
    ]


def running(pod: Seen, now: str, address: str) -> Json:
    sorts = ("Initialized", "Ready", "ContainersReady", "PodReadyToStartContainers")
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_true(sort, now) for sort in sorts],
        "containerStatuses": _containers(pod, {"running": {"startedAt": now}}, ready=True),
    }


def host(node: SeenNode) -> Json:
    for address in node.status.get("addresses") or ():
        if address.get("type") == "InternalIP":
            return {"hostIP": address["address"], "hostIPs": [{"ip": address["address"]}]}
    return {}


def restarted(pod: Seen, now: str, restarts: int) -> Json:
    """The containers of a pod that goes on, after they failed so many times."""
    state = {"running": {"startedAt": now}}
    return {"containerStatuses": _containers(pod, state, ready=True, restarts=restarts)}


def ended(pod: Seen, now: str, exit_code: int = 0) -> Json:
    started = pod.status.get("startTime") or now
    why = "Error" if exit_code else "Completed"
    ended = {"exitCode": exit_code, "reason": why, "startedAt": started, "finishedAt": now}
    state = {"terminated": ended}
    told = "PodFailed" if exit_code else "PodCompleted"
    unready = [
        {**_true(sort, now), "status": "False", "reason": told}
        for sort in ("Ready", "ContainersReady", "PodReadyToStartContainers")
    ]
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "conditions": [_true("Initialized", now), *unready],
        "containerStatuses": _containers(pod, state, ready=False),
    }
