"""The tutorial "your first elastic jobs", as it is written."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from bayplan.cli.embedded import Cluster, Elastic, running
from bayplan.kube.client import NODES, PODS, Resource
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES
from bayplan.kube.transport import MERGE_PATCH
from bayplan.local.spec import nodes
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration

PAGE = (Path(__file__).parents[2] / "docs" / "elastic-tutorial.md").read_text()
JOB, HOROVOD_JOB = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
(SPEC,) = re.findall(r"bayplan up --nodes '([^']+)'", PAGE)
# by command, in the order of the page: what it prints
SHOWN = re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |^```)", PAGE, re.S | re.M)
KINDS = {
    "ej": RESOURCES[GENERAL],
    "elasticjob.bayplan.dev": RESOURCES[GENERAL],
    "elastichorovodjob": RESOURCES[HOROVOD],
    "elastichorovodjobs": RESOURCES[HOROVOD],
    "elastichorovodjob.ai.centauruscloud.io": RESOURCES[HOROVOD],
}
Json = dict[str, Any]


class Reader:
    """Somebody who types what the page says, and compares."""

    def __init__(self, cluster: Cluster) -> None:
        self._client, self._clock = cluster.client, VirtualClock()

    async def send(self, method: str, path: str, body: Json | None = None) -> Json:
        sent = None if body is None else json.dumps(body).encode()
        content = MERGE_PATCH if method == "PATCH" else "application/json"
        answer = await self._client.request(method, path, body=sent, content_type=content)
        found: Json = json.loads(answer)
        return found

    async def type(self, command: str, printed: str) -> None:
        words = shlex.split(command)
        match words[:2]:
            case ["sed", script]:
                await self._apply(JOB.replace("NAME", script.split("/")[2]))
            case ["kubectl", "apply"]:
                await self._apply(HOROVOD_JOB)
            case ["kubectl", "delete"]:
                await self.send("DELETE", KINDS[words[2]].path("default", words[3]))
            case ["kubectl", "patch"]:
                await self.send(
                    "PATCH", KINDS[words[2]].path("default", words[3]), json.loads(words[-1])
                )
            case ["kubectl", "drain"]:
                await self._drain(words[2])
            case ["kubectl", "uncordon"]:
                await self._cordon(words[2], False)
            case ["kubectl", "get"] if len(words) > 3:
                await self._see_field(words, printed)
            case ["kubectl", "get"]:
                assert table(printed) == await self._table(words[2].split(","))
            case _:
                raise AssertionError(f"what does {command} do?")
        await self._clock.sleep(5)

    async def _apply(self, text: str) -> None:
        made = yaml.safe_load(text)
        await self.send("POST", RESOURCES[made["kind"]].path("default"), made)

    async def _cordon(self, node: str, closed: bool) -> None:
        await self.send("PATCH", NODES.path(name=node), {"spec": {"unschedulable": closed}})

    async def _drain(self, node: str) -> None:
        await self._cordon(node, True)
        for pod in (await self.send("GET", PODS.path("default")))["items"]:
            if pod["spec"].get("nodeName") == node:
                await self.send("DELETE", PODS.path("default", pod["metadata"]["name"]))

    async def _see_field(self, words: list[str], printed: str) -> None:
        """Which nodes it was is not for sure, but how many places were kept."""
        job = await self.send("GET", KINDS[words[2]].path("default", words[3]))
        field = words[-1].removesuffix("}").split(".")[-1]
        found, said = job["status"][field], printed.strip()
        if isinstance(found, str):
            assert found == said
            return
        shown = json.loads(said)
        kept = [sum(place["workers"] for place in each.pop("kept", ())) for each in (found, shown)]
        assert (found, kept[0]) == (shown, kept[1])

    async def _table(self, kinds: list[str]) -> list[list[str]]:
        rows = []
        for kind in kinds:
            found = (await self.send("GET", KINDS[kind].path("default")))["items"]
            rows += [await self._row(KINDS[kind], job) for job in found]
        return rows

    async def _row(self, kind: Resource, job: Json) -> list[str]:
        spec, status = job["spec"], job["status"]
        if kind == RESOURCES[GENERAL]:
            numbers = spec["minWorkers"], spec["maxWorkers"], status["workers"]
        else:
            workers = spec["workersSpec"]
            numbers = workers["minReplicas"], workers["maxReplicas"], status["availableReplicas"]
        return [job["metadata"]["name"], *map(str, numbers), status["phase"]]


def table(printed: str) -> list[list[str]]:
    """Without headings, ages, and kinds before names."""
    rows = [line.split()[:-1] for line in printed.splitlines() if line]
    return [[row[0].split("/")[-1], *row[1:]] for row in rows if row[0] != "NAME"]


def test_the_page_says_what_happens() -> None:
    async def story(seed: int) -> None:
        async with running(
            nodes(SPEC), Configuration(), VirtualClock(), seed=seed, elastic=Elastic()
        ) as cluster:
            reader = Reader(cluster)
            for command, printed in SHOWN:
                await reader.type(command, printed)

    assert len(SHOWN) > 20
    for seed in range(5):  # whichever nodes chance takes
        run(story(seed))
