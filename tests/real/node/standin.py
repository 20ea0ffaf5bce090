"""A stand-in for a kubelet, for machines where none can run: gRPC and the API, no containers.

It does with device plugins what a kubelet does: registration, ListAndWatch, GetPreferredAllocation,
Allocate, its account in the PodResources API, the node's status, and sockets that are gone after a
restart. Pods that come at the same time are taken in an order of its own. Their phase becomes
Running, and nothing runs.
"""

import random
import re
import threading
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from bayplan.agent import wire
from bayplan.protobuf import decoder, encode
from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.node.kubelets import FILES, Kubelet
from tests.real.node.rig import PODS, Json

POLL_S = 0.02
ANSWER_S = 10.0
_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


class StandIn:
    what = "a gRPC stand-in for a kubelet, without containers"

    def __init__(self, plane: ControlPlane, name: str, directory: Path) -> None:
        self.plane, self.name, self.directory = plane, name, directory
        self._random = random.Random(1)
        self._lock = threading.Lock()
        self._devices: dict[str, set[str]] = {}  # by resource: the healthy ones
        self._plugins: dict[str, grpc.Channel] = {}
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}  # pod: resource: ids
        self._environments: dict[str, dict[str, str]] = {}
        self._servers: list[grpc.Server] = []
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self._follow, name="stand-in")

    def __enter__(self) -> "StandIn":
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        about = {"metadata": {"name": self.name}, "status": status}
        self.plane.request("POST", "/api/v1/nodes", about)
        for folder in (self.device_plugins, self.pod_resources.parent):
            folder.mkdir()
        self._serve()
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._loop.join()
        self._close()

    @property
    def device_plugins(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.directory / "pod-resources" / "kubelet.sock"

    def restart_kubelet(self, kill: bool = False) -> None:
        with self._lock:
            self._close()
            for socket in self.device_plugins.iterdir():
                socket.unlink()
            self._serve()

    def environment(self, pod: str) -> dict[str, str]:
        return self._environments.get(pod, {})

    def allocatable(self, resource: str) -> Set[str]:
        return self._devices.get(resource, set())

    # What a plugin and its agent ask

    def _serve(self) -> None:
        methods: dict[Path, tuple[str, Callable[..., Any]]] = {
            self.device_plugins / "kubelet.sock": (wire.REGISTER, self._register),
            self.pod_resources: (wire.LIST, self._account),
        }
        for socket, (path, handle) in methods.items():
            _, service, method = path.split("/")
            asked = wire.Registration if path == wire.REGISTER else wire.Empty
            handlers = {method: wire.unary(handle, asked)}
            server = grpc.server(ThreadPoolExecutor(2))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
            server.add_insecure_port(f"unix:{socket}")
            server.start()
            self._servers.append(server)

    def _close(self) -> None:
        for server in self._servers:
            server.stop(None).wait()
        for channel in self._plugins.values():
            channel.close()
        self._servers.clear()
        self._plugins.clear()
        self._devices.clear()

    def _register(self, asked: wire.Registration, context: Any) -> wire.Empty:
        socket = self.device_plugins / asked.endpoint
        channel = grpc.insecure_channel(f"unix:{socket}", options=wire.OPTIONS)
        resource = asked.resource_name
        self._plugins[resource] = channel
        watch = threading.Thread(target=self._watch, args=(resource, channel), daemon=True)
        watch.start()
        return wire.Empty()

    def _watch(self, resource: str, channel: grpc.Channel) -> None:
        path = f"/{wire.PLUGIN}/ListAndWatch"
        lists = channel.unary_stream(path, encode, decoder(wire.DeviceList))(wire.Empty())
        try:
            for found in lists:
                healthy = {one.id for one in found.devices if one.health == wire.HEALTHY}
                self._devices[resource] = healthy
                amounts = {resource: str(len(healthy))}
                status = {"status": {"capacity": amounts, "allocatable": amounts}}
                self.plane.request("PATCH", f"/api/v1/nodes/{self.name}/status", status)
        except (grpc.RpcError, ValueError):  # the plugin, or the channel, has ended
            pass
        if self._plugins.get(resource) is channel:
            self._devices.pop(resource, None)

    def _account(self, asked: wire.Empty, context: Any) -> wire.Pods:
        pods = []
        for name, held in dict(self._held).items():
            devices = tuple(wire.ContainerDevices(key, ids) for key, ids in held.items())
            pods.append(wire.Pod(name, "default", (wire.Container("main", devices),)))
        return wire.Pods(tuple(pods))

    # What happens to pods

    def _follow(self) -> None:
        while not self._ended.wait(POLL_S):
            path = f"{PODS}?fieldSelector=spec.nodeName={self.name}"
            pods = self.plane.request("GET", path)["items"]
            self._random.shuffle(pods)
            with self._lock:
                self._see(pods)

    def _see(self, pods: list[Json]) -> None:
        there = {pod["metadata"]["name"] for pod in pods}
        for name in set(self._held) - there:
            del self._held[name]
            self._environments.pop(name, None)
        for pod in pods:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            elif name not in self._held:
                self._admit(name, pod)

    def _admit(self, name: str, pod: Json) -> None:
        container = pod["spec"]["containers"][0]
        held: dict[str, tuple[str, ...]] = {}
        environment = {}
        for one in container.get("env", ()):
            found = _ANNOTATION.fullmatch(one["valueFrom"]["fieldRef"]["fieldPath"])
            assert found is not None
            environment[one["name"]] = pod["metadata"]["annotations"][found[1]]
        for resource, amount in container["resources"].get("limits", {}).items():
            if resource in self._plugins:
                held[resource], more = self._allocate(resource, int(amount))
                environment |= more
        self._held[name] = held
        status = [{"name": "main", "image": "", "imageID": "", "ready": True, "restartCount": 0}]
        status[0]["containerID"] = f"stand-in://{name}"
        body = {"status": {"phase": "Running", "containerStatuses": status}}
        try:
            self.plane.request("PATCH", f"{PODS}/{name}/status", body)
        except Refused as refused:
            if refused.status != 404:  # it was deleted
                raise
        self._environments[name] = environment

    def _allocate(self, resource: str, size: int) -> tuple[tuple[str, ...], dict[str, str]]:
        taken = {id for held in self._held.values() for id in held.get(resource, ())}
        free = sorted(self._devices[resource] - taken)
        wishes = wire.Wishes((wire.Wish(tuple(free), (), size),))
        answer = self._call(resource, "GetPreferredAllocation", wishes, wire.IdsPerContainer)
        preferred = [id for id in answer.containers[0].ids if id in free]
        ids = tuple([*preferred, *(id for id in free if id not in preferred)][:size])
        asked = wire.IdsPerContainer((wire.Ids(ids),))
        answer = self._call(resource, "Allocate", asked, wire.AllocatedPerContainer)
        (given,) = answer.containers
        files = " ".join(Path(file.container_path).name for file in given.files)
        return ids, {**given.environment, FILES: files}

    def _call(self, resource: str, method: str, asked: Any, answer: type[Any]) -> Any:
        path = f"/{wire.PLUGIN}/{method}"
        call = self._plugins[resource].unary_unary(path, encode, decoder(answer))
        return call(asked, timeout=ANSWER_S)


_: type[Kubelet] = StandIn
