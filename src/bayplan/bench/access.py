"""How the benchmarks' own processes reach a control plane: its address and a token.

It reads the kubeconfig that `bayplan.testing.controlplane` writes and no other: that one is JSON.
It needs only the standard library, so that an observer stays small.
"""

import json
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Access(NamedTuple):
    host: str
    port: int
    ca_file: str
    token: str

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        return f"Bearer {self.token}"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)


def access(kubeconfig: str | Path) -> Access:
    """Who we are, and to whom we talk."""
    config = json.loads(Path(kubeconfig).read_text())
    cluster = config["clusters"][0]["cluster"]
    server = urlsplit(cluster["server"])
    token = config["users"][0]["user"]["token"]
    ca_file = cluster["certificate-authority"]
    return Access(server.hostname or "", server.port or 443, ca_file, token)
