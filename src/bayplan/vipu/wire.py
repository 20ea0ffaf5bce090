"""What is said over gRPC: the calls of vipu.proto with their questions and answers.

The values in them are those of `controller`. As there, a field's number is its place.
"""

import os

from msgspec import Struct

from bayplan.vipu.controller import Partition, VipuError

SERVICE = "bayplan.vipu.v1.Vipu"
CREATE, GET, DELETE = "CreatePartition", "GetPartition", "DeletePartition"
LIST, INVENTORY = "ListPartitions", "GetInventory"

# Who is asking, in the metadata. The names are ours, after the options of the vipu command.
USER_ID, ACCESS_KEY = "api-user-id", "api-access-key"


class Empty(Struct, frozen=True):
    pass


class CreatePartition(Struct, frozen=True):
    id: str = ""
    size: int = 0
    cluster: str = ""
    allocation: str = ""
    reconfigurable: bool = False


class PartitionId(Struct, frozen=True):
    id: str = ""


class PartitionReply(Struct, frozen=True):
    partition: Partition | None = None


class PartitionList(Struct, frozen=True):
    partitions: tuple[Partition, ...] = ()


def need_grpc() -> None:
    """It is imported with the first client or server: who has no V-IPU needs no grpcio."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters of it we tell ourselves
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # no copy of us uses it
    try:
        import grpc.aio  # noqa: F401
    except ModuleNotFoundError:
        raise VipuError("V-IPU needs the package grpcio; install bayplan[vipu]") from None
