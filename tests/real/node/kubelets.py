"""What tests of the agent need of a kubelet, whichever it is."""

from collections.abc import Set
from pathlib import Path
from typing import Protocol

import grpc
from msgspec import Struct

from bayplan.agent import wire
from bayplan.protobuf import decoder, encode
from bayplan.testing.node import Node

ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
ANSWER_S = 10.0
FILES = "FILES"  # in an environment: the names of the device files that the container has


class Kubelet(Protocol):
    """The kubelet of node `name`. Pods are in the namespace `default`; a container is `main`."""

    name: str
    what: str  # in words, for whoever runs the tests

    @property
    def device_plugins(self) -> Path: ...

    @property
    def pod_resources(self) -> Path: ...

    def restart_kubelet(self, kill: bool = False) -> None: ...

    def environment(self, pod: str) -> dict[str, str]:
        """What the container was started with; empty before that."""

    def allocatable(self, resource: str) -> Set[str]:
        """The devices that it would give out."""


class Allocatable(Struct, frozen=True):
    devices: tuple[wire.ContainerDevices, ...] = ()


class RealKubelet:
    """On a real node, whose containers print their environment."""

    what = "a real kubelet and real containers"

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self._node = node

    @property
    def device_plugins(self) -> Path:
        return self._node.device_plugins

    @property
    def pod_resources(self) -> Path:
        return self._node.pod_resources

    def restart_kubelet(self, kill: bool = False) -> None:
        self._node.restart_kubelet(kill)

    def environment(self, pod: str) -> dict[str, str]:
        lines = self._node.container_log("default", pod).splitlines()
        return dict(line.split("=", 1) for line in lines) if "END=1" in lines else {}

    def allocatable(self, resource: str) -> Set[str]:
        socket = f"unix:{self.pod_resources}"
        with grpc.insecure_channel(socket, options=wire.OPTIONS) as channel:
            ask = channel.unary_unary(ALLOCATABLE, encode, decoder(Allocatable))
            answer = ask(wire.Empty(), timeout=ANSWER_S)
        return {id for some in answer.devices if some.resource == resource for id in some.ids}


_: type[Kubelet] = RealKubelet
