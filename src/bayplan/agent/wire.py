"""What the kubelet and a device plugin say to each other, and how it says what pods hold.

Device plugin API v1beta1 and PodResources API v1, the fields that are used: written from the public
facts of the wire format, which tests/agent has as .proto files. Each field's number is its place.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from msgspec import Struct

from bayplan.protobuf import decoder, encode

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
REGISTER = "/v1beta1.Registration/Register"
PLUGIN = "v1beta1.DevicePlugin"
LIST = "/v1.PodResourcesLister/List"

T = TypeVar("T", bound=Struct)

# grpc takes a socket's path for the server's name, which some servers refuse.
OPTIONS = (("grpc.default_authority", "localhost"),)


class Empty(Struct, frozen=True):
    pass


class Options(Struct, frozen=True):
    pre_start_required: bool = False
    get_preferred_allocation_available: bool = False


class Registration(Struct, frozen=True):
    version: str = ""
    endpoint: str = ""  # the socket's name in the kubelet's directory
    resource_name: str = ""
    options: Options = Options()


class NumaNode(Struct, frozen=True):
    id: int = 0


class Topology(Struct, frozen=True):
    nodes: tuple[NumaNode, ...] = ()


class Device(Struct, frozen=True):
    id: str = ""
    health: str = ""
    topology: Topology | None = None


class DeviceList(Struct, frozen=True):
    devices: tuple[Device, ...] = ()


class Wish(Struct, frozen=True):
    """For one container: which of the available ones the kubelet should take."""

    available: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    size: int = 0


class Wishes(Struct, frozen=True):
    containers: tuple[Wish, ...] = ()


class Ids(Struct, frozen=True):
    ids: tuple[str, ...] = ()


class IdsPerContainer(Struct, frozen=True):
    """An answer to `Wishes`, and what Allocate asks for."""

    containers: tuple[Ids, ...] = ()


class Mount(Struct, frozen=True):
    container_path: str = ""
    host_path: str = ""
    read_only: bool = False


class DeviceFile(Struct, frozen=True):
    container_path: str = ""
    host_path: str = ""
    permissions: str = ""  # of r, w and m


class Allocated(Struct, frozen=True):
    environment: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()  # not used; here for its number
    files: tuple[DeviceFile, ...] = ()


class AllocatedPerContainer(Struct, frozen=True):
    containers: tuple[Allocated, ...] = ()


class ContainerDevices(Struct, frozen=True):
    resource: str = ""
    ids: tuple[str, ...] = ()


class Container(Struct, frozen=True):
    name: str = ""
    devices: tuple[ContainerDevices, ...] = ()


class Pod(Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    containers: tuple[Container, ...] = ()


class Pods(Struct, frozen=True):
    pods: tuple[Pod, ...] = ()


def channel(socket: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


def call(
    channel: grpc.aio.Channel, path: str, answer: type[T]
) -> "grpc.aio.UnaryUnaryMultiCallable[Any, T]":
    return channel.unary_unary(path, encode, decoder(answer))


def unary(handle: Callable[..., Any], asked: type[Struct]) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(handle, decoder(asked), encode)


def streaming(handle: Callable[..., Any], asked: type[Struct]) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_stream_rpc_method_handler(handle, decoder(asked), encode)
