"""A client of a stand-in server, ready to use."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bayplan.kube.client import Client
from bayplan.kube.clock import Clock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.http import HttpTransport


def write_kubeconfig(
    path: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any
) -> str:
    """A kubeconfig with one context, `test`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "there", "user": "me"}}],
        "clusters": [{"name": "there", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": {"token": "secret"} if user is None else user}],
    }
    path.write_text(json.dumps(config))
    return str(path)


@asynccontextmanager
async def connected(
    server: str, clock: Clock, folder: Path, connections: int = 64, **kubeconfig: Any
) -> AsyncIterator[Client]:
    path = write_kubeconfig(folder / "config", server, **kubeconfig)
    transport = HttpTransport(Credentials(find_source(path), clock), clock, connections)
    try:
        yield Client(transport, clock, random.Random(1))
    finally:
        await transport.close()
