"""The command as it runs: the lease, health, metrics, configuration, and how it ends."""

import asyncio
import http.client
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from bayplan.cli.main import main
from bayplan.cli.manifests import render
from bayplan.elastic.config import BadConfig, Configuration, read
from bayplan.elastic.controller import Controller
from bayplan.elastic.seen import MakeLauncher, MakeWorkers, RemovePods, Worker, Write
from bayplan.elastic.service import Health, lease_of
from bayplan.elastic.writer import Stale
from bayplan.kube.client import Client
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.http import HttpTransport
from bayplan.kube.http import until as ended
from bayplan.kube.transport import ApiError, Fenced
from bayplan.web.server import serving
from tests.elastic.stage import DEFINITIONS, Stage, elastic, node, play
from tests.embedded import EmbeddedPlane
from tests.real.rig import until

HEAD = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanElasticConfiguration"}


# The lease, on virtual time


def test_one_of_two_leads_and_the_other_takes_over_when_it_dies() -> None:
    async def story(stage: Stage) -> None:
        await stage.kill()
        stage.elects = True
        first = stage.start()
        await stage.pass_time(5)
        second = stage.start()
        await stage.submit(elastic("a", 1, 2))
        await stage.pass_time(10)
        assert (first.controller.leads, second.controller.leads) == (True, False)
        assert second.judge.writes == []
        assert stage.workers() == {"a": 2}

        await first.kill()
        await stage.submit(elastic("b", 1, 2))
        await stage.pass_time(40)
        assert second.controller.leads
        assert stage.workers() == {"a": 2, "b": 2}

    play(story, only=4)


def test_who_lost_the_lease_sends_nothing_more() -> None:
    async def story(stage: Stage) -> None:
        await stage.kill()
        stage.elects = True
        process = stage.start()
        await stage.pass_time(5)
        lease = process.controller._lease
        assert lease is not None
        lease.renewed_at = float("-inf")
        with pytest.raises(Fenced):
            process.controller._fence()
        before = len(process.judge.writes)
        await stage.submit(elastic("a", 1, 2))
        await process.controller.look()
        assert len(process.judge.writes) == before

    play(story, only=4)


def test_a_server_without_the_kinds_is_waited_for() -> None:
    async def story(stage: Stage) -> None:
        name = "elastichorovodjobs.ai.centauruscloud.io"
        await stage.kill()
        await stage.user.request("DELETE", f"{DEFINITIONS}/{name}")
        process = stage.start()
        await stage.pass_time(3)
        assert process.controller.is_ready
        await stage.submit(elastic("a", 1, 2))
        await stage.pass_time(5)
        assert stage.workers() == {"a": 2}

    play(story, only=4)


# Over HTTP


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_serves_health_and_metrics_grants_and_gives_up_its_lease(tmp_path: Path) -> None:
    async def story(plane: EmbeddedPlane) -> None:
        clock = RealClock()
        transport = HttpTransport(Credentials(find_source(str(plane.kubeconfig)), clock), clock)
        client = Client(transport, clock, random.Random(0))
        config = read({**HEAD, "leaderElection": {"leaderElect": True}}, "f")
        controller = Controller(client, config.settings, lease_of(config, client))
        stopped = asyncio.Event()
        async with serving("127.0.0.1:0", Health(controller).routes) as port:
            running = asyncio.create_task(ended(stopped, controller.run()))
            await asyncio.to_thread(until, lambda: granted(plane))
            assert await asyncio.to_thread(get, port, "/readyz") == (200, "ok\n")
            assert (await asyncio.to_thread(get, port, "/livez"))[0] == 200
            _, metrics = await asyncio.to_thread(get, port, "/metrics")
            assert "bayplan_elastic_leads 1.0" in metrics
            assert 'bayplan_elastic_steps_total{step="Write"}' in metrics
            stopped.set()
            await running
        await transport.close()

    def granted(plane: EmbeddedPlane) -> bool:
        path = "/apis/bayplan.dev/v1alpha1/namespaces/default/elasticjobs/a"
        return "grant" in plane.request("GET", path).get("status", {})

    with EmbeddedPlane(tmp_path) as plane:
        for definition in yaml.safe_load_all(render("elastic-crds", {})):
            plane.request("POST", DEFINITIONS, definition)
        plane.request("POST", "/api/v1/nodes", node("only", 4))
        path = "/apis/bayplan.dev/v1alpha1/namespaces/default/elasticjobs"
        plane.request("POST", path, elastic("a", 1, 2))
        said = CliRunner().invoke(
            main, ["elastic", "--dry-run", "--kubeconfig", str(plane.kubeconfig)]
        )
        assert (said.exit_code, said.stdout) == (0, "ElasticJob default/a is granted 2 workers\n")
        assert "status" not in plane.request("GET", f"{path}/a")
        asyncio.run(story(plane))
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/bayplan-elastic"
        assert plane.request("GET", leases)["spec"]["holderIdentity"] == ""


# The configuration


def test_an_empty_file_has_every_default() -> None:
    assert read(HEAD, "f") == Configuration()


def test_the_documented_file_is_the_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    whole = text.partition("## bayplan elastic")[2].partition("```yaml\n")[2].partition("```")[0]
    assert read(yaml.safe_load(whole), "f") == Configuration()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alocator": "best"}, "f: no such field as 'alocator'; did you mean allocator?"),
        ({"allocator": "bst"}, "f: allocator: Invalid enum value 'bst'"),
        ({"threshold": -1}, "f: threshold: Expected `float` >= 0.0"),
        (
            {"patience": {"confirm": 1}},
            "f: patience: no such field as 'confirm'; did",
        ),
        ({"patience": {"confirmSeconds": 0}}, "f: patience.confirmSeconds: Expected `float` > 0.0"),
        ({"leaderElection": {"leaseSeconds": 5}}, "f: leaderElection: leaseSeconds must be more"),
        ({"kind": "Other"}, "f: apiVersion and kind should be"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig) as error:
        read(HEAD | changes, "f")
    assert str(error.value).startswith(words)


def test_the_command_checks_a_file(tmp_path: Path) -> None:
    file = tmp_path / "elastic.yaml"
    file.write_text(yaml.safe_dump(HEAD | {"allocator": "faithful"}))
    arguments = ["elastic", "--check-config", "--config", str(file)]
    done = CliRunner().invoke(main, arguments)
    assert done.output == f"{file} is valid: allocator faithful\n"
    file.write_text("[]")
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (
        2,
        f"Error: {file}: should be a mapping of fields\n",
    )


def test_what_was_planned_for_an_older_grant_is_not_done() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 2))
        await stage.pass_time(5)
        assert stage.process is not None
        job = stage.job("a")
        old = replace(job, grant=replace(job.grant, generation=0, workers=4))
        pods = stage.pods()
        for step in (MakeWorkers(old, (2, 3)), RemovePods(old, ()), MakeLauncher(old)):
            with pytest.raises(Stale):
                await stage.process.controller.writer.carry_out(step)
        with pytest.raises(ApiError) as refused:
            await stage.process.controller.writer.carry_out(Write(replace(job, version="1")))
        assert refused.value.status == 409
        assert stage.pods() == pods

    play(story, only=4)


def test_a_worker_that_was_bound_since_it_was_seen_is_not_made_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 2))
        await stage.pass_time(5)
        assert stage.process is not None
        writer, job = stage.process.controller.writer, stage.job("a")
        about = stage.objects("pods")["a-worker-0"]["metadata"]
        now = int(about["resourceVersion"])
        seen = Worker(about["name"], about["uid"], 0, "waiting", version=str(now - 1))
        with pytest.raises(ApiError) as refused:
            await writer.carry_out(RemovePods(job, (seen,), unchanged=True))
        assert refused.value.status == 409
        assert stage.workers() == {"a": 2}
        await writer.carry_out(RemovePods(job, (replace(seen, version=str(now)),), unchanged=True))
        assert stage.workers() == {"a": 1}

    play(story, only=4)
