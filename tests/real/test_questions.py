"""Questions that nobody asked before, without end: clear answers, and bounded time and memory.

`bayplan run` is a process of its own and schedules meanwhile. `make prove` asks for an hour, and
`make test` for seconds.
"""

import http.client
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.rig import Cluster, Json, Scheduler, pod, until

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
SECONDS = 3600.0 if PROVE else 12.0
A_SECOND = 40.0  # the same for both, so that an hour is only more of the same
NODES, GPUS = 40, 8
LONGEST_S = 2.5  # the API gives a question up after 2 s
LATE_S = 5.0  # for a pod to be bound beside all this
SPARE = 1.05  # how much larger the process may be in the end than after the first quarter
FEW_FILES = 4  # connections that come and go
TOO_LARGE = "too large"
LIVES = 10  # pods of the cluster's own that are there at a time


class Asker:
    """One connection, kept as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.seconds: list[float] = []
        self.longest: dict[str, float] = {}
        self.answers: Counter[str] = Counter()

    def ask(self, what: str, body: bytes) -> None:
        began = time.monotonic()
        try:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", "/v1/what-if", body, headers)
        except OSError:  # a body that is too large need not be taken to its end
            assert what == TOO_LARGE
            self._connection.close()
            return
        reply = self._connection.getresponse()
        said = json.loads(reply.read())
        took = time.monotonic() - began
        self.seconds.append(took)
        self.longest[what] = max(took, self.longest.get(what, 0.0))
        self.answers[f"{what} {reply.status}"] += 1
        if reply.status != 200:
            assert said["error"], said
            return
        for answer in said["answers"]:
            assert answer["ok"] or answer.get("error") or answer["message"], answer

    def close(self) -> None:
        self._connection.close()


def word(rng: random.Random) -> str:
    return f"w{rng.getrandbits(60):x}"


def odd_pod(rng: random.Random) -> Json:
    """A pod whose labels, selectors, resources and names nobody has seen before."""
    selector = {"matchLabels": {word(rng): word(rng)}}
    term = {"labelSelector": selector, "topologyKey": word(rng)}
    node_term = {"matchExpressions": [{"key": word(rng), "operator": "NotIn", "values": ["v"]}]}
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    spec: Json = rng.choice(
        (
            {},
            {"nodeSelector": {word(rng): word(rng)}},
            {"tolerations": [{"key": word(rng), "operator": "Exists"}]},
            {"affinity": {"nodeAffinity": required([node_term], "nodeSelectorTerms")}},
            {"affinity": {"podAntiAffinity": required([term])}},
            {"affinity": {"podAffinity": required([term])}},
            {"topologySpreadConstraints": [{**spread, "topologyKey": "kubernetes.io/hostname"}]},
            {"topologySpreadConstraints": [{**spread, "topologyKey": word(rng)}]},
            {"schedulerName": word(rng)},
            {"priorityClassName": word(rng)},
        )
    )
    made = pod(word(rng), rng.randint(0, GPUS + 1), **spec)
    made["metadata"]["labels"] = {word(rng): word(rng) for _ in range(rng.randint(0, 5))}
    made["metadata"]["namespace"] = word(rng)
    if rng.random() < 0.2:
        limits = made["spec"]["containers"][0]["resources"]["limits"]
        limits[f"{word(rng)}.example/x"] = "1"
    return made


def required(terms: list[Any], inside: str = "") -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {inside: terms} if inside else terms}


def odd_step(rng: random.Random, names: list[str]) -> Json:
    one, many = odd_pod(rng), rng.randint(1, 3)
    gang = {"name": word(rng), "pod": one, "count": many + 1, "minMember": many}
    steps: tuple[Json, ...] = (
        {"fits": {"pod": one}},
        {"fits": {"pod": one, "node": rng.choice(names)}},
        {"fits": {"pod": one, "node": word(rng)}},
        {"fits": {"pod": one, "without": [f"default/{word(rng)}"]}},
        {"evict": [word(rng)]},
        {"place": {"pod": one}},
        {"place": {"gang": gang}},
        {"preempt": {"pod": one}},
        {"capacity": {"pod": one}},
        {"nodes": {"add": {"like": rng.choice(names), "count": many}}},
        {"nodes": {"add": {"like": word(rng), "count": many}}},
        {"nodes": {"remove": [rng.choice(names)]}},
    )
    return rng.choice(steps)


def questions(rng: random.Random, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """What it is called, and the body; the rude ones first, so that what they cost is known."""
    new = (names[0], f"{names[0]}-new-1")
    add = [{"nodes": {"add": {"like": each, "count": 3}}} for each in new]
    rude = (
        ("a million steps", b'{"steps":[' + b"{}," * 999_999 + b"{}]}"),
        (TOO_LARGE, b'{"steps":[' + b"[]," * 2_000_000 + b"{}]}"),
        ("new nodes of new nodes", json.dumps({"steps": [*add, *add]}).encode()),
    )
    yield from rude
    while True:
        if rng.random() < 0.01:
            yield rng.choice(rude)
        else:
            steps = [odd_step(rng, names) for _ in range(rng.randint(1, 4))]
            yield "odd", json.dumps({"steps": steps}).encode()


def kib(scheduler: Scheduler) -> int:
    """How much memory the process has."""
    status = Path(f"/proc/{scheduler.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def open_files(scheduler: Scheduler) -> int:
    return len(os.listdir(f"/proc/{scheduler.process.pid}/fd"))


class Life:
    """Pods that come and go in the cluster, and must be bound in time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._number, self._there = cluster, 0, list[str]()

    def go_on(self) -> None:
        name, self._number = f"live-{self._number}", self._number + 1
        self._cluster.add_pod(name)
        until(lambda: self._cluster.node_of(name), LATE_S)
        self._there.append(name)
        if len(self._there) > LIVES:
            self._cluster.delete_pod(self._there.pop(0))


@pytest.mark.timeout(SECONDS + 120, func_only=True)
def test_odd_questions_cost_bounded_time_and_memory(wiped: ControlPlane, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    cluster = Cluster(wiped, "default")
    names = [f"asked-{number}" for number in range(NODES)]
    for name in names:
        cluster.add_node(name, gpus=GPUS)
    with (
        Scheduler(tmp_path, wiped.kubeconfig) as scheduler,
        closing(Asker(scheduler.api_port)) as asker,
    ):
        life, sizes, files = Life(cluster), list[int](), list[int]()
        began, asked = time.monotonic(), questions(rng, names)
        for turn in range(int(SECONDS * A_SECOND)):
            asker.ask(*next(asked))
            if turn % A_SECOND == A_SECOND - 1:
                life.go_on()
                sizes.append(kib(scheduler))
                files.append(open_files(scheduler))
            time.sleep(max(0.0, began + (turn + 1) / A_SECOND - time.monotonic()))
        quarter = len(sizes) // 4
        by_quarter = [max(sizes[at * quarter : (at + 1) * quarter]) for at in range(4)]
        cuts = quantiles(asker.seconds, n=100)
        print(  # noqa: T201
            f"{len(asker.seconds)} questions: {dict(asker.answers)}; p50 {1e3 * cuts[49]:.1f} ms, "
            f"p99 {1e3 * cuts[98]:.1f} ms, longest in s {asker.longest}; KiB by quarter of "
            f"the time {by_quarter}; {max(files)} open files, in the end {files[-1]}"
        )
        assert max(asker.seconds) < LONGEST_S
        assert by_quarter[-1] < SPARE * by_quarter[0]
        assert max(files[-quarter:]) <= max(files[:quarter]) + FEW_FILES
        assert asker.answers["odd 200"] > 0.9 * len(asker.seconds)
        assert scheduler.process.running
