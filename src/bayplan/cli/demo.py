"""`bayplan demo`: every supported system's story, on the embedded API, in virtual time."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.cli.shell import OUTPUT
from bayplan.cli.tables import table

if TYPE_CHECKING:
    from bayplan.cli.embedded import Cluster
    from bayplan.cli.story import Arrival, Asked, Change, Later, Scene, Story
    from bayplan.scheduler.config import Configuration

HELP = """Play the story of every system that Bayplan replaces, without a cluster.

The embedded API, pretend nodes and the real scheduler run in this process. It ends with status 0
only if every pod went where it should.

\b
Example:
  bayplan demo
"""
PATIENCE_S = 60.0  # of virtual time, for one pod
STEADY_S = 15.0  # elastic jobs have what they should, and still do after so long
KINDS_S = 61.0  # the scheduler looks for kinds that are new once a minute


class Outcome(Struct, frozen=True, rename="camel"):
    """What became of a pod."""

    story: str
    pod: str
    node: str | None
    devices: str
    expected: str | None
    says: str  # why it waits, or why it should be there
    ids: tuple[str, ...] = ()
    expected_ids: tuple[str, ...] = ()
    shown: str = ""  # in place of the node, for an answer
    changed: bool = False  # not a pod: what elastic jobs have, after a change

    @property
    def ok(self) -> bool:
        return (self.node, self.ids) == (self.expected, self.expected_ids)


@click.command(name="demo", help=HELP)
@OUTPUT
def demo(output: str) -> None:
    from bayplan.cli.stories import STORIES

    outcomes = []
    with _quietly():
        for story in STORIES:
            played = play(story)
            outcomes += played
            if output == "text":
                click.echo(f"{story.name}: {story.says}\n")
                click.echo(f"{shown(played)}\n")
    wrong = [outcome.pod for outcome in outcomes if not outcome.ok]
    if output == "json":
        whole = {"ok": not wrong, "placements": [msgspec.to_builtins(o) for o in outcomes]}
        click.echo(msgspec.json.encode(whole))
    elif wrong:
        click.echo(f"not where they should be: {', '.join(wrong)}")
    else:
        click.echo(_summary(outcomes))
    raise SystemExit(1 if wrong else 0)


def _summary(outcomes: list[Outcome]) -> str:
    answers = sum(bool(outcome.shown) for outcome in outcomes)
    changes = sum(outcome.changed for outcome in outcomes)
    pods = {(o.story, o.pod) for o in outcomes if not o.shown and not o.changed}
    return (
        f"{len(pods)} pods, each where it should be; {answers} questions, each answered as it "
        f"should be; {changes} changes of elastic jobs, each with the workers that it should have."
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the scheduler says beside it, as to pods that wait."""
    log = logging.getLogger("bayplan")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def shown(outcomes: list[Outcome]) -> str:
    rows = [
        (o.pod, o.shown or o.node or "(waits)", o.devices, o.says if o.ok else _should(o))
        for o in outcomes
    ]
    of_jobs = all(outcome.changed for outcome in outcomes)
    heads = ("STEP", "WORKERS") if of_jobs else ("POD", "NODE")
    return table((*heads, "DEVICES", "WHY"), rows)


def _should(outcome: Outcome) -> str:
    devices = f" with {', '.join(outcome.expected_ids)}" if outcome.expected_ids else ""
    on = "" if outcome.changed else "on "
    return f"should be {on}{outcome.expected}{devices}"


def play(story: "Story") -> list[Outcome]:
    from bayplan.cli.embedded import Elastic, running
    from bayplan.local.virtual import VirtualClock, run
    from bayplan.scheduler.config import Pool
    from bayplan.scheduler.steward import Site
    from bayplan.vipu.fake import FakeVipu, one_cluster
    from bayplan.vipu.faults import Faulty

    async def scene() -> list[Outcome]:
        clock = VirtualClock()
        config = _config(story)

        def reach(pool: Pool) -> Site:
            return Site(*pool.parts, Faulty(FakeVipu(one_cluster(story.ipus)), clock))

        elastic = Elastic() if story.elastic else None
        async with running(
            story.nodes, config, clock, seed=0, reach=reach, elastic=elastic
        ) as cluster:
            for path, made in story.others:
                await cluster.client.request("POST", path, body=msgspec.json.encode(made))
            if story.others:
                await clock.sleep(KINDS_S)
            played = []
            for each in story.scenes:
                played.append(await _scene(cluster, story.name, each))
                await clock.sleep(1.0)  # who came first is known by the second
            return played

    return run(scene())


def _config(story: "Story") -> "Configuration":
    from importlib.resources import files

    from bayplan.scheduler.config import Configuration, Gangs, LeaderElection, Pool, read

    if story.reserve_after_s is not None:
        return Configuration(gangs=Gangs(reserve_after=story.reserve_after_s))
    if story.ipus:
        return Configuration(pools=(Pool("vipu-server:8090:vipu-ctrl=vctl1"),))
    if not story.config:
        return Configuration()
    name = f"{story.config}.yaml"
    config = read((files("bayplan") / "deploy" / name).read_bytes(), name)
    return replace(config, leader_election=LeaderElection())  # nobody else is there


async def _scene(cluster: "Cluster", story: str, scene: "Scene") -> Outcome:
    from bayplan.cli.story import Arrival, Asked, Change

    if isinstance(scene, Change):
        return await _change(cluster, story, scene)
    if isinstance(scene, Asked):
        return await _ask(cluster, story, scene)
    if isinstance(scene, Arrival):
        return await _one(cluster, story, scene)
    return await _later(cluster, story, scene)


async def _ask(cluster: "Cluster", story: str, asked: "Asked") -> Outcome:
    """As `bayplan what-if` would, on the running scheduler. Victims stand where devices do."""
    from bayplan.scheduler.questions import LiveQuestions

    service = cluster.service
    vendors = service.config.vendors
    questions = LiveQuestions(service.loop.engine, vendors, cluster.client, lambda: True)
    body = msgspec.json.encode({"steps": [asked.step]})
    (answer,) = msgspec.json.decode(await questions.what_if(body))["answers"]
    node, victims = answer.get("node"), tuple(answer.get("victims", ()))
    shown = "yes" if answer["ok"] else "no"
    if "count" in answer:
        shown = str(answer["count"])
    elif node:
        shown = f"yes: {node}"
    outcome = Outcome(
        story,
        asked.words,
        node,
        f"without {', '.join(victims)}" if victims else "-",
        asked.node,
        answer.get("message") or asked.because,
        victims,
        asked.victims,
        shown,
    )
    if (answer["ok"], answer.get("count")) != (asked.ok, asked.count):
        return replace(outcome, expected="another answer")
    return outcome


async def _change(cluster: "Cluster", story: str, change: "Change") -> Outcome:
    from bayplan.kube.transport import JSON, MERGE_PATCH

    method, path, made = change.request
    body = None if made is None else msgspec.json.encode(made)
    content = MERGE_PATCH if method == "PATCH" else JSON
    await cluster.client.request(method, path, body=body, content_type=content)
    clock = cluster.client.clock
    until = clock.time() + PATIENCE_S
    while _workers(await _jobs(cluster)) != change.workers and clock.time() < until:
        await clock.sleep(0.1)
    await clock.sleep(STEADY_S)
    jobs = await _jobs(cluster)
    devices: Counter[str] = Counter()
    for job in jobs:
        devices.update(job.get("status", {}).get("grant", {}).get("counts", {}))
    asked = ", ".join(f"{many} {name}" for name, many in devices.items()) or "-"
    has, should = _told(_workers(jobs)), _told(change.workers)
    return Outcome(story, change.words, has, asked, should, change.because, changed=True)


async def _jobs(cluster: "Cluster") -> list[dict[str, Any]]:
    from bayplan.kube.elastic import GENERAL, RESOURCES

    answer = await cluster.client.request("GET", RESOURCES[GENERAL].path("default"))
    items: list[dict[str, Any]] = msgspec.json.decode(answer)["items"]
    return items


def _workers(jobs: list[dict[str, Any]]) -> dict[str, int]:
    """By job."""
    found = {}
    for job in jobs:
        status = job.get("status", {})
        theirs = "managedBy" in job["spec"]
        many = status.get("confirmed", {}).get("workers") if theirs else status.get("ready")
        found[job["metadata"]["name"]] = many or 0
    return found


def _told(workers: dict[str, int]) -> str:
    return ", ".join(f"{name} {many}" for name, many in sorted(workers.items()))


async def _one(cluster: "Cluster", story: str, arrival: "Arrival") -> Outcome:
    from bayplan.kube.client import PODS

    await cluster.client.clock.sleep(arrival.after_s)
    name = arrival.pod["metadata"]["name"]
    body = msgspec.json.encode(arrival.pod)
    await cluster.client.request("POST", PODS.path("default"), body=body)

    def is_decided(pod: dict[str, Any]) -> bool:
        return bool(_why_not(pod)) and (arrival.node is None or _is_final(pod))

    found = await _awaited(cluster, name, is_decided)
    node, why, ids = found["spec"].get("nodeName"), _why_not(found), _ids(found)
    says = why if why and node is None else arrival.because
    devices = f"{_devices(found)}{': ' if ids else ''}{', '.join(ids)}"
    return Outcome(story, name, node, devices, arrival.node, says, ids, arrival.devices)


async def _later(cluster: "Cluster", story: str, later: "Later") -> Outcome:
    found = await _awaited(cluster, later.name, lambda pod: False)
    node = found["spec"].get("nodeName")
    says = later.because if node else _why_not(found)
    return Outcome(story, later.name, node, _devices(found), later.node, says)


async def _awaited(
    cluster: "Cluster", name: str, enough: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The pod, once it has a node, or it is enough, or patience is at its end."""
    from bayplan.kube.client import PODS

    clock = cluster.client.clock
    until = clock.time() + PATIENCE_S
    while True:
        answer = await cluster.client.request("GET", PODS.path("default", name))
        found: dict[str, Any] = msgspec.json.decode(answer)
        if found["spec"].get("nodeName") or enough(found) or clock.time() > until:
            return found
        await clock.sleep(0.1)


def _is_final(pod: dict[str, Any]) -> bool:
    """Whether nobody goes for it."""
    return not pod["status"].get("nominatedNodeName")


def _why_not(pod: dict[str, Any]) -> str:
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    return ""


def _ids(pod: dict[str, Any]) -> tuple[str, ...]:
    """The devices that its annotation names."""
    from bayplan.core.model.devices import ASSIGNMENT, Unknown, read_assignment

    text = (pod["metadata"].get("annotations") or {}).get(ASSIGNMENT)
    found = Unknown("") if text is None else read_assignment(text)
    if isinstance(found, Unknown):
        return ()
    return tuple(dict.fromkeys(d.id for held in found.held for d in held.devices))


def _devices(pod: dict[str, Any]) -> str:
    """How many of what; which ones, where they are assigned by id."""
    counts: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in (container["resources"].get("limits") or {}).items():
            if "/" in name:
                counts[name] = counts.get(name, 0) + int(amount)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"
