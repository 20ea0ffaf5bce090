"""Two replicas and one lease: a leader that stops for a while, or for good, is replaced.

What must not happen: the old leader wakes up and binds behind the new one's back. The API server's
audit log tells who sent which bind, and when.
"""

import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos import leases
from tests.real.chaos.audit import AuditLog, Bind
from tests.real.chaos.judging import judge
from tests.real.chaos.load import Load, make_nodes, node, pod
from tests.real.chaos.proxy import Action, Answer, Asked, Drop, Proxy, bind_of
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import USERS, Replica, Start, kubeconfig
from tests.real.chaos.waiting import eventually

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
STOPS = 20 if PROVE else 2
STOPPED_S = 20.0  # in the long form
KILLS = 5 if PROVE else 1
SHORT = {"leaseDuration": "5s", "renewDeadline": "3s", "retryPeriod": "500ms"}
LEASE_S = 15.0 if PROVE else 5.0
SOON_S = 4 * LEASE_S
BURST = 3  # binds after a wave by which it is under way


def election(times: dict[str, str]) -> dict[str, object]:
    return {"leaderElection": {"leaderElect": True, **times}}


CONFIG = election({} if PROVE else SHORT)


@dataclass(frozen=True)
class Stop:
    """One time that a leader stopped."""

    user: str
    stopped_at: float  # wall clock
    resumed_at: float
    replaced: bool
    unsent: float  # binds that the old leader had decided on and gave up


class Pair:
    """Two replicas, each under a name of its own."""

    def __init__(self, plane: ControlPlane, start: Start, audit: AuditLog) -> None:
        self._plane, self._start, self._audit = plane, start, audit
        leases.forget(plane)
        self.replicas = {user: self._begin(user) for user in USERS}
        for replica in self.replicas.values():
            replica.wait_until_ready()

    def leader(self) -> str:
        """Who leads; waits until somebody does."""

        def who() -> list[str]:
            return [user for user in USERS if leases.leads(self._plane, self.replicas[user])]

        return eventually(who, "a leader", SOON_S)[0]

    def wait_until_binding(self, user: str, after: float = 0.0) -> None:
        """Until it has bound some pods."""
        eventually(
            lambda: len(self._audit.bound_by(user, after)) > BURST, f"binds of {user}", SOON_S
        )

    def again(self, user: str) -> None:
        self.replicas[user] = self._begin(user)
        self.replicas[user].wait_until_ready()

    def _begin(self, user: str) -> Replica:
        return self._start(user, self._plane.kubeconfig_for(user), CONFIG)


def other(user: str) -> str:
    return next(name for name in USERS if name != user)


@pytest.mark.timeout(1800, func_only=True)
def test_a_leader_that_stops_for_a_while_is_replaced_and_binds_nothing_afterwards(
    empty: ControlPlane, namespace: str, start: Start, rng: random.Random, audit: AuditLog
) -> None:
    make_nodes(empty)
    pair = Pair(empty, start, audit)
    stops: list[Stop] = []
    with Recorder(empty) as recorder, Load(empty, namespace, random.Random(rng.random())) as load:
        for n in range(STOPS):
            user, now = pair.leader(), time.time()
            pair.wait_until_binding(user, after=now)
            if n % 2:
                time.sleep(rng.uniform(0.2, 2.0))  # any moment
            else:  # in the middle of many binds
                load.wave()
                assert recorder.wait_for_binds(BURST, SOON_S), "nothing was bound after a wave"
            stops.append(stop_for_a_while(empty, pair, user))
        load.stop()
        seen = judge(empty, recorder)
        for replica in pair.replicas.values():
            replica.stop()
    binds = audit.binds()
    report(stops, binds, seen)
    assert [bind for bind in behind(stops, binds) if bind.status == 201] == []


def stop_for_a_while(plane: ControlPlane, pair: Pair, user: str) -> Stop:
    leader, standby = pair.replicas[user], pair.replicas[other(user)]
    before, losses = unsent(leader), lost(leader)
    stopped_at = time.time()
    leader.pause()
    if PROVE:
        time.sleep(STOPPED_S)  # whoever leads by then
    else:
        pair.wait_until_binding(other(user), after=stopped_at)
    replaced = leases.leads(plane, standby)
    resumed_at = time.time()
    leader.resume()
    eventually(lambda: lost(leader) > losses, "the old leader knows that it is none", SOON_S)
    eventually(lambda: leader.is_ready and standby.is_ready, "both are ready", SOON_S)
    return Stop(user, stopped_at, resumed_at, replaced, unsent(leader) - before)


def unsent(replica: Replica) -> float:
    return replica.metrics().get('bayplan_failed_writes_total{kind="bind"}', 0.0)


def lost(replica: Replica) -> int:
    return sum("the lease is lost" in line for line in replica.said())


def behind(stops: list[Stop], binds: list[Bind]) -> list[Bind]:
    """Binds of an old leader that came after the first of the new one, until that was stopped.

    There may be one: a leader can stop between its last look at the clock and the system call that
    sends the bytes. Its own time-out ends it as soon as it wakes up, before the server has done it.
    """
    found: list[Bind] = []
    for stop, until in zip(stops, [*(stop.stopped_at for stop in stops[1:]), 1e12], strict=True):
        first = first_of_the_new(stop, binds)
        if stop.replaced and first is not None:
            found += [b for b in binds if b.user == stop.user and first < b.at < until]
    return found


def first_of_the_new(stop: Stop, binds: list[Bind]) -> float | None:
    return next((b.at for b in binds if b.user != stop.user and b.at > stop.stopped_at), None)


def report(stops: list[Stop], binds: list[Bind], seen: str) -> None:
    gaps: list[float] = []
    in_flight = 0
    for stop in stops:
        ours = [b.at for b in binds if b.user == stop.user]
        in_flight += any(-0.02 < at - stop.stopped_at < 0.1 for at in ours)
        first = first_of_the_new(stop, binds)
        if stop.replaced and first is not None:
            gaps.append(first - max(at for at in ours if at < first))
    shown = ", ".join(f"{gap:.1f}" for gap in sorted(gaps))
    print(  # noqa: T201
        f"{len(stops)} stops, {in_flight} of them within 20 ms of a bind, "
        f"{sum(stop.replaced for stop in stops)} replaced; {seen}\n"
        f"from the last bind of the old to the first of the new: {shown} s, "
        f"median {statistics.median(gaps) if gaps else 0:.1f} s\n"
        f"binds that the old leader gave up: {[stop.unsent for stop in stops]}; "
        f"that came after the first of the new: {[b.status for b in behind(stops, binds)]}"
    )


@pytest.mark.timeout(900, func_only=True)
def test_a_leader_that_is_killed_is_replaced(
    empty: ControlPlane, namespace: str, start: Start, rng: random.Random, audit: AuditLog
) -> None:
    make_nodes(empty)
    pair = Pair(empty, start, audit)
    with Recorder(empty) as recorder, Load(empty, namespace, random.Random(rng.random())) as load:
        for _ in range(KILLS):
            user, now = pair.leader(), time.time()
            pair.wait_until_binding(user, after=now)
            time.sleep(rng.uniform(0.2, 2.0))  # any moment
            killed_at = time.time()
            pair.replicas[user].kill()
            pair.wait_until_binding(other(user), after=killed_at)
            pair.again(user)
        load.stop()
        print(f"{KILLS} kills; {judge(empty, recorder)}")  # noqa: T201


@pytest.mark.timeout(900, func_only=True)
def test_a_leader_that_stops_in_an_orderly_way_is_replaced_at_once(
    empty: ControlPlane, namespace: str, start: Start, rng: random.Random, audit: AuditLog
) -> None:
    """It finishes what it began and gives up the lease: nobody waits for that to run out."""
    make_nodes(empty)
    pair = Pair(empty, start, audit)
    took: list[float] = []
    with Recorder(empty) as recorder, Load(empty, namespace, random.Random(rng.random())) as load:
        for _ in range(KILLS + 1):
            user, now = pair.leader(), time.time()
            pair.wait_until_binding(user, after=now)
            stopped_at = time.time()
            pair.replicas[user].stop()
            pair.wait_until_binding(other(user), after=stopped_at)
            took.append(audit.bound_by(other(user), stopped_at)[0].at - stopped_at)
            pair.again(user)
        load.stop()
        seen = judge(empty, recorder)
    shown = ", ".join(f"{seconds:.1f}" for seconds in took)
    print(f"the next leader bound after {shown} s; {seen}")  # noqa: T201
    assert max(took) < LEASE_S


def pods_are_read_whole(asked: Asked) -> bool:
    return asked.method == "GET" and asked.path == "/api/v1/pods" and not asked.watches


@pytest.mark.timeout(120, func_only=True)
@pytest.mark.parametrize("trouble", [Answer(503), Answer(429, {"Retry-After": "1"}), Drop()])
def test_a_new_leader_that_cannot_read_the_pods_tries_again(
    empty: ControlPlane, namespace: str, start: Start, tmp_path: Path, trouble: Action
) -> None:
    leases.forget(empty)
    empty.request("POST", "/api/v1/nodes", node("only", "east"))
    empty.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("web"))
    with Proxy(empty) as proxy, Recorder(empty) as recorder:
        proxy.rule(pods_are_read_whole, trouble, times=2)
        replica = start("first", kubeconfig(tmp_path / "proxied", proxy.url), CONFIG)
        assert recorder.wait(lambda: recorder.bound() == 1, SOON_S), replica.process.tail()
        assert proxy.seen(pods_are_read_whole) >= 3
        replica.kill()


QUICK = {"leaseDuration": "2s", "renewDeadline": "1s", "retryPeriod": "200ms"}


class Waiting:
    """The first of two leads. The server has asked it to bind `late` again in a while."""

    def __init__(
        self, plane: ControlPlane, namespace: str, start: Start, proxy: Proxy, wait_s: int
    ) -> None:
        leases.forget(plane)
        plane.request("POST", "/api/v1/nodes", node("only", "east"))
        self._plane, self._pods = plane, f"/api/v1/namespaces/{namespace}/pods"
        config = kubeconfig(plane.directory / "proxied", proxy.url)
        self.first = start("first", config, election(QUICK))
        eventually(lambda: leases.leads(plane, self.first), "the first leads")
        self.second = start("second", plane.kubeconfig_for("second"), election(QUICK))
        self.second.wait_until_ready()
        proxy.rule(bind_of("late"), Answer(429, {"Retry-After": str(wait_s)}), times=1)
        self.submit("late")
        proxy.wait_for(bind_of("late"))

    def submit(self, name: str, **spec: str) -> None:
        self._plane.request("POST", self._pods, pod(name, gpus=8, **spec))


@pytest.mark.timeout(120, func_only=True)
def test_a_bind_that_had_to_wait_is_not_sent_when_another_leads(
    empty: ControlPlane, namespace: str, start: Start
) -> None:
    with Proxy(empty) as proxy, Recorder(empty) as recorder:
        pair = Waiting(empty, namespace, start, proxy, wait_s=2)
        before = unsent(pair.first)
        pair.first.pause()
        assert recorder.wait(lambda: recorder.bound() == 1, 20.0), "the second binds it"
        pair.first.resume()
        eventually(lambda: unsent(pair.first) > before, "the first gives it up")
        judge(empty, recorder)
        assert proxy.seen(bind_of("late")) == 1
        pair.first.kill()


@pytest.mark.timeout(120, func_only=True)
def test_a_bind_decided_before_the_lease_was_lost_is_not_sent_when_it_is_held_again(
    empty: ControlPlane, namespace: str, start: Start
) -> None:
    """Meanwhile another led, and gave the place away."""
    empty.kubectl("delete", "priorityclass", "urgent", "--ignore-not-found")
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    empty.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    with Proxy(empty) as proxy, Recorder(empty) as recorder:
        pair = Waiting(empty, namespace, start, proxy, wait_s=10)
        before = unsent(pair.first)
        pair.first.pause()
        pair.submit("early", priorityClassName="urgent")
        assert recorder.wait(lambda: recorder.bound() == 1, 20.0), "the second binds `early`"
        pair.second.stop()
        pair.first.resume()
        eventually(lambda: leases.leads(empty, pair.first), "the first leads again")
        eventually(lambda: unsent(pair.first) > before or recorder.bound() == 2, "the wait is over")
        judge(empty, recorder)
        assert proxy.seen(bind_of("late")) == 1
        pair.first.kill()
