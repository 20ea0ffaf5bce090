"""The two extenders of the benchmark, each a process of its own: ours, and one that accepts all."""

from collections.abc import Callable
from pathlib import Path

from bayplan.bench import accept_all, contenders
from bayplan.bench.contenders import Running
from bayplan.testing.controlplane import Process, free_ports

Start = Callable[[Path, int], Running]  # with a kubeconfig, and the port to listen on


def start_bayplan(kubeconfig: Path, port: int) -> Running:
    """With no configuration: every known class of devices, and no leader election."""
    (health,) = free_ports(1)
    command = [
        *(contenders.PYTHON, "-m", "bayplan", "extender"),
        *(f"--kubeconfig={kubeconfig}", f"--port={port}"),
        *(f"--listen=127.0.0.1:{health}", "--api=127.0.0.1:0"),
    ]
    process = Process("bayplan extender", command, kubeconfig.with_name("extender.log"))
    return Running(process, lambda: contenders.get(health, "/readyz") is not None, health)


def start_accept_all(kubeconfig: Path, port: int) -> Running:
    log = kubeconfig.with_name(f"accept-all-{port}.log")
    command = [contenders.PYTHON, "-m", accept_all.__name__, str(kubeconfig), str(port)]
    process = Process("accept-all extender", command, log)
    return Running(process, lambda: b"ready" in log.read_bytes())
