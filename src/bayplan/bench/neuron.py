"""The objects of the extender's benchmark: AWS nodes with Neuron devices, pods that want some.

Everything follows from numbers and a seed, so that each of its processes can make the same again.
"""

import random
from collections.abc import Iterator
from typing import Any

from bayplan.bench.cluster import NAMESPACE

Json = dict[str, Any]

NEURON = "aws.amazon.com/neuron"
MANAGED = (NEURON, "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore")
TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
DEVICES = {TRN1: 16, INF2: 12}
ROW = 4  # devices in a row of a trn1
SIZES = (1, 4, 8)  # what pods ask for; every one of them is legal on both
CORES = 2  # of a device
ROW_TAKEN, ROW_TOUCHED = 0.35, 0.6  # a row of a trn1: taken as a whole; or one device of it
RUN_TAKEN = 0.5  # a run of 1 to 3 devices of an inf2


def node_name(number: int) -> str:
    """As AWS names them."""
    return f"ip-10-0-{number // 256}-{number % 256}.ec2.internal"


def node(number: int, kind: str = TRN1) -> Json:
    name, devices = node_name(number), DEVICES[kind]
    labels = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": kind}
    room = {
        "cpu": "128",
        "memory": "512Gi",
        "pods": "110",
        NEURON: str(devices),
        "aws.amazon.com/neuroncore": str(CORES * devices),
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, devices: int) -> Json:
    asked = {NEURON: str(devices)}
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", **asked}, "limits": asked},
    }
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "train"}},
        "spec": {"schedulerName": "default-scheduler", "containers": [container]},
    }


def mixed(number: int) -> str:
    """The instance types of the stand-in's nodes, in turn."""
    return (TRN1, INF2)[number % 2]


def maps(kind: str, taken: set[int]) -> dict[str, str]:
    """What a node says of its devices and cores."""
    devices = [i in taken for i in range(DEVICES[kind])]
    cores = [used for used in devices for _ in range(CORES)]
    said = {"NEURON_DEV_USAGE_MAP": devices, "NEURON_CORE_USAGE_MAP": cores}
    return {key: ",".join(str(used).lower() for used in each) for key, each in said.items()}


def fillers(nodes: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    """Somewhat less than half of all devices: for each pod its node and its devices, as AWS's
    extension would have given them."""
    rng = random.Random(seed)
    for number in range(nodes):
        if mixed(number) == TRN1:
            for first in range(0, DEVICES[TRN1], ROW):
                chance = rng.random()
                if chance < ROW_TAKEN:
                    yield number, list(range(first, first + ROW))
                elif chance < ROW_TOUCHED:
                    yield number, [first + rng.randrange(ROW)]
        else:
            first = 0
            while first < DEVICES[INF2]:
                end = min(first + rng.randint(1, 3), DEVICES[INF2])
                if rng.random() < RUN_TAKEN:
                    yield number, list(range(first, end))
                first = end
