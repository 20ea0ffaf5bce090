"""The tutorial "your first gang", as it is written."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bayplan.cli.embedded import Cluster, running
from bayplan.cli.explain import render as explained
from bayplan.cli.manifests import render
from bayplan.core.engine.advice import Advice
from bayplan.kube.client import POD_GROUPS, PODS
from bayplan.local.spec import nodes
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration

PAGE = (Path(__file__).parents[2] / "docs" / "gang-tutorial.md").read_text()
WORKER, TRAIN, NEXT = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
(SPEC,) = re.findall(r"bayplan up --nodes '([^']+)'", PAGE)
# by command, in the order of the page: what it prints
SHOWN = re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |^```)", PAGE, re.S | re.M)
GROUPS = POD_GROUPS["scheduling.x-k8s.io"]
Json = dict[str, Any]
SEED = 1  # of equal nodes chance takes the first; with this one as on the page


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._clock = cluster, VirtualClock()
        self._shown = iter(SHOWN)

    async def send(self, method: str, path: str, text: str = "") -> Json:
        body = json.dumps(yaml.safe_load(text)).encode() if text else None
        answer = await self._cluster.client.request(method, path, body=body)
        await self._clock.sleep(4)
        found: Json = json.loads(answer)
        return found

    async def define(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await self.send("POST", path, render("crds", {}))
        await self._clock.sleep(60)

    async def work(self, name: str, group: str = "train") -> None:
        text = re.sub(": train$", f": {group}", WORKER.replace("NAME", name), flags=re.M)
        await self.send("POST", PODS.path("default"), text)

    async def group(self, text: str) -> None:
        await self.send("POST", GROUPS.path("default"), text)

    async def see(self, *commands: str) -> None:
        """The next commands of the page print what it shows."""
        for command in commands:
            written, output = next(self._shown)
            assert written.startswith(command)
            if command.startswith("bayplan explain"):
                why = Advice(self._cluster.service.engine).explain(written.split()[-1])
                assert output == explained(msgspec.to_builtins(why)) + "\n"
            elif command == "kubectl get pg train -o":
                status = (await self.send("GET", GROUPS.path("default", "train")))["status"]
                assert output == status["conditions"][0]["message"] + "\n"
            elif command == "kubectl get pg":
                rows = [line.split()[:-1] for line in output.splitlines()[1:]]  # without the age
                assert rows == [await self._row(row[0]) for row in rows]
            elif command == "kubectl get pods":
                found = await self.send("GET", PODS.path("default"))
                places = [[p["metadata"]["name"], p["spec"]["nodeName"]] for p in found["items"]]
                assert [line.split() for line in output.splitlines()[1:]] == sorted(places)

    async def _row(self, name: str) -> list[str]:
        group = await self.send("GET", GROUPS.path("default", name))
        status = group["status"]
        counts = [status[each] for each in ("scheduled", "running", "succeeded", "failed")]
        return [name, status["phase"], *map(str, (group["spec"]["minMember"], *counts))]

    def assert_done(self) -> None:
        assert next(self._shown, None) is None


def test_the_page_says_what_happens() -> None:
    async def story() -> None:
        async with running(nodes(SPEC), Configuration(), VirtualClock(), seed=SEED) as cluster:
            reader = Reader(cluster)
            await reader.define()
            await reader.work("worker-1")
            await reader.work("worker-2")
            await reader.see("bayplan explain")
            await reader.group(TRAIN)
            await reader.see("kubectl apply", "kubectl get pg", "kubectl get pg train -o")
            await reader.work("worker-3")
            await reader.see("kubectl get pg")
            await reader.group(NEXT)
            await reader.work("next-1", "next")
            await reader.work("next-2", "next")
            await reader.see("bayplan explain")
            for name in ("worker-1", "worker-2"):
                await reader.send("DELETE", PODS.path("default", name))
            await VirtualClock().sleep(10)
            await reader.see("kubectl get pods")
            reader.assert_done()

    run(story())
