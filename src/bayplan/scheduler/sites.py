"""How the controllers of a configuration are reached, and by what name they know us."""

from pathlib import Path

import msgspec
from msgspec import Struct

from bayplan.kube import wire
from bayplan.kube.client import NAMESPACES, Client, Retry
from bayplan.scheduler.config import ConfigError, Configuration, Pool
from bayplan.scheduler.steward import Site
from bayplan.vipu import client as vipu

HOME = "kube-system"  # every cluster has this namespace, and it is never made again
_AGAIN = Retry(tries=10)


class _Namespaces(Struct):
    items: list[wire.Namespace] = []


def site_of(pool: Pool) -> Site:
    host, port, label = pool.parts
    options = vipu.Options(
        timeout_s=pool.timeout,
        at_once=pool.at_once,
        roots=_read(pool.ca_file) if pool.ca_file else None,
        user_id=pool.user_id,
        access_key=_read(pool.access_key_file).decode().strip() if pool.access_key_file else "",
    )
    return Site(host, port, label, vipu.Client(f"{host}:{port}", options))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


async def cluster_name(config: Configuration, client: Client) -> str:
    """Clusters may share a controller, so it must be this one's alone."""
    if config.cluster_name:
        return config.cluster_name
    only = {"fieldSelector": f"metadata.name={HOME}"}  # listing is what we may do anyhow
    answer = await client.request("GET", NAMESPACES.path(), params=only, retry=_AGAIN)
    for found in msgspec.json.decode(answer, type=_Namespaces).items:
        if found.metadata is not None and found.metadata.uid:
            return found.metadata.uid
    raise ConfigError(f"clusterName: is needed, because there is no namespace {HOME}")
