"""How long an extender takes to filter 5,000 nodes: one question at a time beside sixteen binds in
flight, and sixteen questions at once. First one that accepts everything, then ours.

Four processes: the extender, the stand-in for the API server, the binders, and this one, which asks
over plain blocking sockets with bytes made before the clock starts, and reads the answers after it
has stopped. A pod that was filtered is bound next, to a node of the answer, as kube-scheduler does.
"""

import gc
import json
import random
import re
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.bench import binders, contenders, extenders, neuron, stand_in
from bayplan.bench.binders import Binds
from bayplan.bench.extenders import Start
from bayplan.bench.machine import Meter
from bayplan.bench.throughput import BenchError, Progress
from bayplan.testing.controlplane import Process, free_ports

PYTHON = contenders.PYTHON
AT_ONCE = 16
READY_S = 120.0
TIMEOUT_S = 30.0
READ_BYTES = 1 << 20
OFFERED_S = 2.5  # a filter is forgotten after 2 s
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Plan(Struct, frozen=True):
    nodes: int = 5_000
    warm_up: int = 100
    filters: int = 1_000
    bursts: int = 100  # of sixteen
    singles: int = 8_000  # pods that the binders have to themselves

    @property
    def mixed(self) -> int:
        """Pods that are filtered over all nodes."""
        return self.warm_up + self.filters + AT_ONCE


QUICK = Plan(warm_up=50, filters=200, bursts=20, singles=4_000)


class Answer(Struct):
    names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    error: str = msgspec.field(name="Error", default="")


class Asker:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._chunks: list[bytes] = []
        self._missing: int | None = None  # bytes, once the head is there
        self.sent = 0.0

    def send(self, request: bytes) -> None:
        self._chunks, self._missing = [], None
        self.sent = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> bool:
        """Some of the answer; whether it is whole."""
        chunk = self.socket.recv(READ_BYTES)
        if not chunk:
            raise BenchError("the extender hung up")
        self._chunks.append(chunk)
        if self._missing is None:
            head, end, body = b"".join(self._chunks).partition(b"\r\n\r\n")
            length = _LENGTH.search(head) if end else None
            if length is None:
                return False
            self._missing = int(length[1]) - len(body)
        else:
            self._missing -= len(chunk)
        return self._missing <= 0

    def ask(self, request: bytes) -> float:
        """Milliseconds until the last byte."""
        self.send(request)
        while not self.read():
            pass
        return 1e3 * (time.perf_counter() - self.sent)

    def names(self) -> list[str]:
        head, _, body = b"".join(self._chunks).partition(b"\r\n\r\n")
        answer = msgspec.json.decode(body, type=Answer) if b" 200 " in head[:16] else Answer()
        if not answer.names or answer.error:
            raise BenchError(f"the filter said {(head[:16] + b' ' + body[:300])!r}")
        return answer.names


class Questions:
    """Filter requests, each for another of the waiting pods."""

    def __init__(self, plan: Plan) -> None:
        self._next = 0
        rows = list(range(plan.nodes))
        random.Random(binders.SEED).shuffle(rows)  # kube-scheduler begins anywhere, too
        self.rows = {neuron.node_name(row): row for row in rows}
        self._names = msgspec.json.encode(list(self.rows))

    def next(self) -> tuple[int, bytes]:
        number = self._next
        self._next += 1
        return number, question(number, stand_in.size_of(number), self._names)


def question(number: int, size: int, names: bytes) -> bytes:
    pod = msgspec.json.encode(stand_in.waiting_pod(number, size))
    body = b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (pod, names)
    return binders.post("/filter", body)


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of the filter alone, and those of an extender that accepts everything."""
    theirs = ask(plan, extenders.start_accept_all)
    progress(f"filter over {plan.nodes} names, accept-all: {describe(theirs)}")
    ours = ask(plan, extenders.start_bayplan)
    progress(f"filter over {plan.nodes} names, bayplan: {describe(ours)}")
    return ours | {f"accept_all_{key}": value for key, value in theirs.items()}


def describe(found: dict[str, Any]) -> str:
    return (
        "p99 {filter_ms_p99:.1f} ms, of 16 at once {filter16_ms_p99:.1f} ms; other programs used "
        "{filter_elsewhere_cores:.2f} cores".format(**found)
    )


def ask(plan: Plan, start: Start) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, served(Path(directory), plan, start) as port:
        questions, rng, meter = Questions(plan), random.Random(binders.SEED), Meter()
        gc.disable()
        try:
            introduce(port, plan)
            with binding(port, plan) as binder:
                one_by_one(port, questions, plan.warm_up, binder, rng)
                beside = one_by_one(port, questions, plan.filters, binder, rng)
                binds = ended(binder)
            alone, whole = bursts(port, questions, plan.bursts)
        finally:
            gc.enable()
    if binds.ran_out:
        raise BenchError("the binders had no pods left")
    good = binds.answers.get("", 0)
    return {
        "filter_ms_p50": median(beside),
        "filter_ms_p99": p99(beside),
        "filter_binds_per_s": good / binds.seconds,
        "filter_binds_refused": sum(binds.answers.values()) - good,
        "filter_bind_ms_p50": median(binds.ms),
        "filter_bind_ms_p99": p99(binds.ms),
        "filter16_ms_p50": median(alone),
        "filter16_ms_p99": p99(alone),
        "filter16_all_ms_p99": p99(whole),
        "filter_elsewhere_cores": meter.elsewhere_cores(),
    }


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def introduce(port: int, plan: Plan) -> None:
    """The binders' own pods are filtered beforehand, each over the node that it will get:
    kube-scheduler binds no pod that the extender does not know."""
    asker, rows = Asker(port), binders.roomy(plan.nodes)
    for number in range(plan.mixed, plan.mixed + plan.singles):
        names = [neuron.node_name(binders.row_of(number, rows))]
        asker.ask(question(number, 1, msgspec.json.encode(names)))
        asker.names()
    asker.socket.close()
    time.sleep(OFFERED_S)


def one_by_one(
    port: int,
    questions: Questions,
    count: int,
    binder: "subprocess.Popen[bytes]",
    rng: random.Random,
) -> list[float]:
    """One filter after the other, while the binders are at work."""
    asker, took = Asker(port), []
    assert binder.stdin is not None
    for _ in range(count):
        number, request = questions.next()
        took.append(asker.ask(request))
        row = questions.rows[rng.choice(asker.names())]
        binder.stdin.write(b"%d %d\n" % (number, row))
        binder.stdin.flush()
    asker.socket.close()
    return took


def bursts(port: int, questions: Questions, count: int) -> tuple[list[float], list[float]]:
    """Sixteen filters at once: milliseconds of each, and of all sixteen. No bind is in flight, so
    it is the same sixteen pods each time: more than that never wait to be bound."""
    askers = [Asker(port) for _ in range(AT_ONCE)]
    requests = [questions.next()[1] for _ in askers]
    each, whole = [], []
    with selectors.DefaultSelector() as waiting:
        for _ in range(count):
            began = time.perf_counter()
            for asker, request in zip(askers, requests, strict=True):
                waiting.register(asker.socket, selectors.EVENT_READ, asker)
                asker.send(request)
            while waiting.get_map():
                for key, _ in waiting.select():
                    if key.data.read():
                        each.append(1e3 * (time.perf_counter() - key.data.sent))
                        waiting.unregister(key.fileobj)
            whole.append(1e3 * (time.perf_counter() - began))
            for asker in askers:
                asker.names()
    for asker in askers:
        asker.socket.close()
    return each, whole


@contextmanager
def served(directory: Path, plan: Plan, start: Start) -> Iterator[int]:
    """An extender that has read the stand-in; gives its port."""
    api, port = free_ports(2)
    command = [PYTHON, "-m", stand_in.__name__, *map(str, (api, plan.nodes))]
    command += map(str, (plan.mixed, plan.singles, binders.SEED))
    started = [Process("stand-in", command, directory / "stand-in.log")]
    try:
        log = started[0].log
        started[0].wait_until(lambda: b"ready" in log.read_bytes(), READY_S)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(kubeconfig_for(api)))
        running = start(kubeconfig, port)
        started.append(running.process)
        running.process.wait_until(running.is_ready, READY_S)
        contenders.rest(running.process)
        yield port
    finally:
        for process in reversed(started):
            process.stop()


def kubeconfig_for(port: int) -> dict[str, Any]:
    named = {"name": "bench"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "contexts": [named | {"context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [named | {"cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [named | {"user": {}}],
    }


@contextmanager
def binding(port: int, plan: Plan) -> Iterator["subprocess.Popen[bytes]"]:
    """The binders at work; they end with their standard input."""
    first, end = plan.mixed, plan.mixed + plan.singles
    command = [PYTHON, "-m", binders.__name__, *map(str, (port, plan.nodes, first, end))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as binder:
        assert binder.stdout is not None
        if binder.stdout.readline() != b"ready\n":
            raise BenchError("the binders did not start")
        yield binder


def ended(binder: "subprocess.Popen[bytes]") -> Binds:
    said, _ = binder.communicate(timeout=TIMEOUT_S)
    if binder.returncode != 0:
        raise BenchError(f"the binders ended with {binder.returncode}")
    return msgspec.json.decode(said, type=Binds)
