"""The planner's laws, on a model of the API, a scheduler that confirms, and caches that lag.

Anything may happen in any order: a step of a plan is carried out, or only some of them, the
controller forgets everything, it sees a job or its pods as they were before, the scheduler comes
to its turn, pods go, nodes come and die, jobs come, change and go. Writes are refused as the API
would: a status that has changed since, pods under a grant that is not the planned one.
"""

import os
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.elastic.memory import Memory
from bayplan.elastic.planner import Settings, plan
from bayplan.elastic.seen import MakeWorkers, RemovePods, Seen, Snapshot, Step, Worker, Write
from bayplan.elastic.workers import worker
from bayplan.kube.elastic import GENERAL, Confirmed, Grant, Job
from bayplan.kube.wire import GANG, GANG_MIN

GPU = "nvidia.com/gpu"


class Truth:
    """What the API has: jobs by name, their pods, nodes; and the scheduler's holds."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes = nodes
        self.jobs: dict[str, Job] = {}
        self.pods: dict[str, dict[int, Worker]] = {}  # by job and index
        self.others: dict[str, str] = {}  # pods of others: node, each with one device
        self.holds: dict[str, list[str]] = {}
        self.made = 0

    def free(self, node: str) -> int:
        """By pods alone."""
        ours = sum(
            pod.takes and pod.node == node for pods in self.pods.values() for pod in pods.values()
        )
        theirs = sum(at == node for at in self.others.values())
        return self.nodes.get(node, 0) - ours - theirs

    def kept(self, node: str) -> int:
        return sum(held.count(node) for held in self.holds.values())

    def on_nodes(self, name: str) -> int:
        return sum(pod.takes and bool(pod.node) for pod in self.pods[name].values())

    def seen(self, name: str) -> Seen:
        return Seen(self.jobs[name], tuple(self.pods[name].values()))

    def snapshot(self) -> Snapshot:
        capacity = {
            node: total - sum(at == node for at in self.others.values())
            for node, total in self.nodes.items()
        }
        return Snapshot(tuple(self.seen(name) for name in self.jobs), {GPU: capacity})

    def change(self, name: str, **fields: Any) -> None:
        self.made += 1
        self.jobs[name] = replace(self.jobs[name], version=str(self.made), **fields)

    # ---- the scheduler's turn, as the protocol has it

    def settle(self) -> None:
        self.holds = {
            name: [node for node in held if node in self.nodes]
            for name, held in self.holds.items()
            if name in self.jobs
        }
        for name, job in self.jobs.items():
            wanted = max(job.grant.places - self.on_nodes(name), 0)
            self.holds[name] = self.holds.get(name, [])[:wanted]
        for name, job in self.jobs.items():
            held = self.holds[name]
            for node in self.nodes:
                while (
                    self.on_nodes(name) + len(held) < job.grant.places
                    and self.free(node) - self.kept(node) > 0
                ):
                    held.append(node)
            places = min(job.grant.places, self.on_nodes(name) + len(held))
            said = Confirmed(job.grant.generation, places)
            if said != job.confirmed:
                self.change(name, confirmed=said)
        is_whole = {name: self._is_whole(name) for name in self.pods}
        for name, pods in self.pods.items():
            for index, pod in pods.items():
                if pod.state == "waiting" and self.holds[name] and is_whole[name]:
                    node = self.holds[name].pop(0)
                    pods[index] = replace(pod, state="placed", node=node, ready=True)

    def _is_whole(self, name: str) -> bool:
        """Whether those that wait may start, with those that run."""
        pods, held = self.pods[name].values(), len(self.holds[name])
        waiting = [pod.waits_for for pod in pods if pod.state == "waiting"]
        running = sum(pod.state == "placed" for pod in pods)
        return running + min(len(waiting), held) >= max(waiting, default=0)


class Elastic(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        self.truth = Truth({f"n{i}": size for i, size in enumerate(sizes)})
        self.old: list[Snapshot] = []
        self.memory, self.now, self.names = Memory(), 0.0, 0
        self.settings = Settings()
        self.generations: dict[str, int] = {}
        self.died = False  # a node, since the jobs were all served

    # ---- what users and the world do

    @rule(least=st.integers(1, 3), more=st.integers(0, 4), priority=st.integers(0, 1))
    def arrive(self, least: int, more: int, priority: int) -> None:
        if len(self.truth.jobs) == 4:
            return
        self.names += 1
        name = f"j{self.names}"
        self.truth.pods[name] = {}
        self.truth.jobs[name] = Job(
            GENERAL,
            "default",
            name,
            uid=name,
            arrival=self.names,
            minimum=least,
            maximum=least + more,
            requests=((GPU, 1),),
            priority=priority,
            template=in_gang(name, least),
        )

    @precondition(lambda self: self.truth.jobs)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.truth.jobs)))
        del self.truth.jobs[name], self.truth.pods[name]
        self.truth.holds.pop(name, None)

    @precondition(lambda self: self.truth.jobs)
    @rule(data=st.data(), most=st.integers(1, 6), suspend=st.booleans(), least=st.integers(1, 3))
    def edit(self, data: st.DataObject, most: int, suspend: bool, least: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.truth.jobs)))
        least = min(self.truth.jobs[name].minimum, least)
        spec = {"minimum": least, "maximum": max(least, most), "template": in_gang(name, least)}
        self.truth.change(name, **spec, suspend=suspend)

    @rule(data=st.data())
    def others_come(self, data: st.DataObject) -> None:
        """A pod that is no worker takes what nobody has or is promised."""
        free = [n for n in self.truth.nodes if self.truth.free(n) - self.truth.kept(n) > 0]
        if free:
            self.truth.made += 1
            self.truth.others[f"o{self.truth.made}"] = data.draw(st.sampled_from(free))

    @precondition(lambda self: self.truth.others)
    @rule(data=st.data())
    def others_go(self, data: st.DataObject) -> None:
        del self.truth.others[data.draw(st.sampled_from(sorted(self.truth.others)))]

    @rule(size=st.integers(1, 4))
    def node_comes(self, size: int) -> None:
        if len(self.truth.nodes) < 4:
            self.truth.made += 1
            self.truth.nodes[f"n{self.truth.made}x"] = size

    @precondition(lambda self: len(self.truth.nodes) > 1)
    @rule(data=st.data())
    def node_dies(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.truth.nodes)))
        del self.truth.nodes[node]
        self.truth.others = {k: at for k, at in self.truth.others.items() if at != node}
        for pods in self.truth.pods.values():
            for index in [index for index, pod in pods.items() if pod.node == node]:
                pods[index] = replace(pods[index], state="lost")

    @rule()
    def going_pods_are_gone(self) -> None:
        for pods in self.truth.pods.values():
            for index in [index for index, pod in pods.items() if pod.state == "going"]:
                del pods[index]

    @rule()
    def schedule(self) -> None:
        self.truth.settle()

    @rule(seconds=st.sampled_from((1.0, 11.0, 400.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # ---- what the controller does

    @rule()
    def forget(self) -> None:
        """It dies, and another takes over."""
        self.memory = Memory()

    @rule()
    def remember_how_it_was(self) -> None:
        self.old.append(self.truth.snapshot())

    @rule()
    def look(self) -> None:
        self._carry_out(self._plan(self.truth.snapshot()))

    @rule(many=st.integers(0, 2))
    def look_and_die(self, many: int) -> None:
        self._carry_out(self._plan(self.truth.snapshot())[:many])
        self.memory = Memory()

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def look_at_old_news(self, data: st.DataObject) -> None:
        """Jobs, or pods and nodes, as they were at some time."""
        now, then = self.truth.snapshot(), data.draw(st.sampled_from(self.old))
        jobs = {seen.job.key: seen.job for seen in (then, now)[data.draw(st.integers(0, 1))].jobs}
        pods = (then, now)[data.draw(st.integers(0, 1))]
        mixed = tuple(replace(seen, job=jobs.get(seen.job.key, seen.job)) for seen in pods.jobs)
        self._carry_out(self._plan(Snapshot(mixed, pods.capacity)))

    def _plan(self, snapshot: Snapshot) -> list[Step]:
        return plan(snapshot, self.memory, self.settings, self.now)

    def _carry_out(self, steps: list[Step]) -> None:
        for step in steps:
            job = self.truth.jobs.get(step.job.name)
            if job is None or job.uid != step.job.uid:
                continue
            match step:
                case Write(planned, grant, fields):
                    if planned.version == job.version:
                        self._write(job, grant, fields)
                case MakeWorkers(planned, indices, together):
                    seen = Seen(job)
                    kept = job.confirmed.generation == job.grant.generation and seen.is_settled
                    if planned.grant == job.grant and kept and not job.suspend:
                        self._make(planned, indices, together)
                case RemovePods(planned, pods, unchanged):
                    if planned.grant == job.grant:
                        self._remove(job, pods, unchanged)

    def _write(self, job: Job, grant: Grant | None, fields: dict[str, Any]) -> None:
        said = {**job.said, **fields}
        if grant is not None:
            before = self.generations.get(job.name, 0)
            assert grant.generation == before + 1
            self.generations[job.name] = grant.generation
            assert grant.workers <= job.maximum or grant.workers < job.grant.workers
            self._judge_least(job, grant)
            assert grant.counts == ({GPU: grant.places})
        self.truth.change(job.name, said=said, grant=grant or job.grant)

    def _judge_least(self, job: Job, grant: Grant) -> None:
        """Below the minimum only what the scheduler has no more places for, or on the way up."""
        before, confirmed = job.grant, job.confirmed
        known = confirmed.generation == before.generation
        short = not known or confirmed.workers < before.workers
        rises = grant.workers >= before.workers > 0
        if 0 < grant.workers < job.minimum:
            assert short or rises
        if grant.workers == 0 and before.workers and not job.suspend:
            assert short or not self.truth.on_nodes(job.name) or self._is_squeezed()

    def _is_squeezed(self) -> bool:
        """Whether there are fewer devices than the minima of all that have begun."""
        total = sum(self.truth.nodes.values()) - len(self.truth.others)
        return total < sum(min(j.minimum, j.grant.workers) for j in self.truth.jobs.values())

    def _make(self, job: Job, indices: tuple[int, ...], together: bool) -> None:
        pods = self.truth.pods[job.name]
        for index in indices:
            if index not in pods:  # a name that is taken is refused
                self.truth.made += 1
                uid = f"{job.name}-{self.truth.made}"
                about = worker(job, index, together)["metadata"]
                waits_for = int(about["annotations"][GANG_MIN])
                pods[index] = Worker(about["name"], uid, index, "waiting", waits_for=waits_for)

    def _remove(self, job: Job, removed: tuple[Worker, ...], unchanged: bool) -> None:
        pods = self.truth.pods[job.name]
        for pod in removed:
            now = pods.get(pod.index)
            if now is None or now.uid != pod.uid:
                continue
            if unchanged and now.state != pod.state:
                return  # a conflict
            if now.state in ("lost", "waiting"):
                del pods[pod.index]
            elif now.state == "placed":
                pods[pod.index] = replace(now, state="going")

    # ---- what always holds

    @invariant()
    def no_device_is_given_twice(self) -> None:
        for node in self.truth.nodes:
            assert self.truth.free(node) >= 0

    @invariant()
    def workers_are_within_the_grant_that_was_confirmed(self) -> None:
        for name, job in self.truth.jobs.items():
            takes = sum(pod.takes for pod in self.truth.pods[name].values())
            assert takes <= max(job.grant.places, job.confirmed.workers), name

    def teardown(self) -> None:
        """In peace everybody gets what is planned for, nothing is left to be passed on, and then
        nothing changes any more."""
        if not hasattr(self, "truth"):
            return
        quiet = 0
        for _ in range(400):
            self.now += 11.0
            before = self.truth.made
            steps = self._plan(self.truth.snapshot())
            self._carry_out(steps)
            self.going_pods_are_gone()
            self.truth.settle()
            quiet = quiet + 1 if before == self.truth.made and not steps else 0
            if quiet == 40:
                break
        assert quiet == 40, "it goes on and on"
        for name, job in self.truth.jobs.items():
            assert job.grant.passing == 0
            living = [pod for pod in self.truth.pods[name].values() if pod.lives]
            assert len(living) == job.grant.workers == self.truth.on_nodes(name)
        self._judge_use()

    def _judge_use(self) -> None:
        """Nobody waits, and nobody could have more, while devices are free."""
        free = sum(self.truth.free(node) for node in self.truth.nodes)
        for job in self.truth.jobs.values():
            if job.suspend:
                assert job.grant.workers == 0
            elif job.grant.workers == 0:
                assert free < job.minimum
            elif job.grant.workers < job.minimum:
                assert free < job.minimum - job.grant.workers


def in_gang(name: str, least: int) -> dict[str, Any]:
    """The template of its workers, as far as it matters here."""
    return {"metadata": {"annotations": {GANG: name, GANG_MIN: str(least)}}, "spec": {}}


LONG = bool(os.environ.get("BAYPLAN_PROVE"))
EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES", "2000" if LONG else "100"))
PHASES = [Phase.explicit, Phase.generate] if os.environ.get("BAYPLAN_SHRINK") == "no" else None
Elastic.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, phases=PHASES or tuple(Phase)
)
TestElastic = pytest.mark.timeout(300)(Elastic.TestCase)


# Single looks


def seen(grant: Grant, confirmed: Confirmed, workers: int = 0, most: int = 4, **more: Any) -> Seen:
    job = Job(
        GENERAL,
        "default",
        more.pop("name", "a"),
        uid="a",
        minimum=1,
        maximum=most,
        requests=((GPU, 1),),
        grant=grant,
        confirmed=confirmed,
    )
    pods = [Worker(f"a-worker-{i}", f"u{i}", i, "placed", "n", True) for i in range(workers)]
    return Seen(job, tuple(pods), **more)


def steps_for(*jobs: Seen, devices: int = 4) -> list[Step]:
    """What is planned beside statuses."""
    memory, snapshot = Memory(), Snapshot(jobs, {GPU: {"n": devices}})
    found = plan(snapshot, memory, Settings(), 0.0)
    told = tuple(
        replace(each, job=replace(each.job, said={**each.job.said, **step.fields}))
        for each in jobs
        for step in [next((s for s in found if s.job.key == each.job.key), Write(each.job))]
        if isinstance(step, Write)
    )
    planned = plan(replace(snapshot, jobs=told or jobs), memory, Settings(), 0.0)
    return [step for step in planned if not isinstance(step, Write) or step.grant is not None]


def granted(workers: int, passing: int = 0, generation: int = 3) -> Grant:
    return Grant(generation, workers, passing, {GPU: workers + passing})


def test_more_is_not_asked_for_before_the_last_grant_is_confirmed() -> None:
    (grow,) = steps_for(seen(granted(2), Confirmed(3, 2), workers=2))
    assert isinstance(grow, Write)
    assert grow.grant == granted(4, generation=4)
    assert steps_for(seen(granted(3), Confirmed(2, 2), workers=2)) == []
    assert steps_for(seen(granted(3), Confirmed(3, 2), workers=2)) == []


def test_workers_are_made_as_soon_as_the_grant_is_confirmed_and_not_before() -> None:
    assert steps_for(seen(granted(4), Confirmed(2, 4))) == []
    assert steps_for(seen(granted(4), Confirmed(3, 3))) == []
    (make,) = steps_for(seen(granted(4), Confirmed(3, 4)))
    assert isinstance(make, MakeWorkers)
    assert make.indices == (0, 1, 2, 3)


def test_places_are_passed_on_only_when_the_next_one_is_known_to_the_scheduler() -> None:
    giving = seen(granted(2, passing=2), Confirmed(3, 4), workers=2, most=2, name="giving")
    unseen = seen(granted(2, generation=1), Confirmed(0, 0), most=2)
    known = seen(granted(2, generation=1), Confirmed(1, 0), most=2)
    assert steps_for(giving, unseen) == []
    (release,) = steps_for(giving, known)
    assert isinstance(release, Write)
    assert (release.job.name, release.grant) == ("giving", granted(2, generation=4))


def test_places_that_nobody_wants_are_given_up_at_once() -> None:
    (release,) = steps_for(seen(granted(2, passing=2), Confirmed(3, 4), workers=2, most=2))
    assert isinstance(release, Write)
    assert release.grant == granted(2, generation=4)


def test_a_job_that_may_have_its_places_again_takes_them_back() -> None:
    (back,) = steps_for(seen(granted(2, passing=2), Confirmed(3, 4), workers=2))
    assert isinstance(back, Write)
    assert back.grant == granted(4, generation=4)


def test_pods_that_wait_go_before_those_that_run() -> None:
    job = seen(granted(2), Confirmed(3, 2), workers=2, most=2)
    waiting = Worker("a-worker-2", "u2", 2, "waiting")
    first = Worker("a-worker-3", "u3", 3, "placed", "n")
    (removed,) = steps_for(replace(job, workers=(*job.workers[:1], waiting, first)))
    assert isinstance(removed, RemovePods)
    assert [pod.name for pod in removed.pods] == ["a-worker-2"]


def waiting(granted_: int, waits_for: int, **job: Any) -> Seen:
    """Two workers that wait for so many."""
    found = seen(granted(granted_), Confirmed(3, granted_), most=granted_)
    pods = [
        Worker(f"a-worker-{i}", f"u{i}", i, "waiting", waits_for=waits_for, version="7")
        for i in range(2)
    ]
    fields = {"template": in_gang("a", 1), **job}
    return replace(found, job=replace(found.job, **fields), workers=tuple(pods))


def test_workers_that_wait_for_more_than_are_granted_are_made_again() -> None:
    late = waiting(2, waits_for=3)
    (removed,) = steps_for(late)
    assert isinstance(removed, RemovePods)
    assert (removed.pods, removed.unchanged) == (late.workers, True)


def test_workers_that_others_come_for_are_left_alone() -> None:
    assert steps_for(waiting(2, waits_for=2)) == []
    (more,) = steps_for(waiting(3, waits_for=3))
    assert isinstance(more, MakeWorkers)


def test_workers_of_a_gang_of_the_owners_are_left_alone() -> None:
    """Made again they would wait for as many."""
    assert steps_for(waiting(2, waits_for=3, template=in_gang("a", 3))) == []


def test_who_is_too_many_goes_first_and_who_runs_stays() -> None:
    late = waiting(1, waits_for=3)
    (removed,) = steps_for(late)
    assert isinstance(removed, RemovePods)
    assert [pod.index for pod in removed.pods] == [1]
    bound = replace(late.workers[0], state="placed", node="n")
    assert steps_for(replace(late, workers=(bound,))) == []


def test_a_worker_that_is_going_still_has_its_place() -> None:
    job = seen(granted(2), Confirmed(3, 2), workers=2, most=2)
    going = replace(job.workers[1], state="going")
    assert steps_for(replace(job, workers=(job.workers[0], going))) == []


def test_nobody_is_granted_places_that_pods_still_have() -> None:
    giving = seen(granted(2, passing=2), Confirmed(3, 4), workers=4, most=2, name="giving")
    (remove,) = steps_for(giving, seen(Grant(), Confirmed()))
    assert isinstance(remove, RemovePods)
    gone = replace(giving, workers=giving.workers[:2])
    (grant,) = steps_for(gone, seen(Grant(), Confirmed()))
    assert isinstance(grant, Write)
    assert (grant.job.name, grant.grant) == ("a", granted(2, generation=1))


def test_places_are_kept_until_there_are_enough_for_whoever_waits() -> None:
    first = seen(granted(1, passing=1), Confirmed(3, 2), workers=1, most=1, name="first")
    second = seen(granted(1, passing=1), Confirmed(3, 2), workers=2, most=1, name="second")
    newcomer = seen(Grant(), Confirmed(), most=2)
    newcomer = replace(newcomer, job=replace(newcomer.job, minimum=2))
    (remove,) = steps_for(first, second, newcomer)
    assert isinstance(remove, RemovePods)
    assert remove.job.name == "second"
