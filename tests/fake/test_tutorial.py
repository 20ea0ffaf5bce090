"""The tutorial "your own scheduler in twenty lines", as it is written."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bayplan.cli.embedded import running
from bayplan.kube.client import PODS
from bayplan.local.spec import nodes
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import read

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-scheduler.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
CONFIG, POD = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
(SPEC,) = re.findall(r"bayplan up .*--nodes '([^']+)'", PAGE)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("mine")
def test_pods_go_where_the_page_says() -> None:
    async def story() -> list[str]:
        clock = VirtualClock()
        async with running(nodes(SPEC), read(CONFIG, "mine.yaml"), clock, seed=0) as cluster:
            for number in range(1, 5):
                body = json.dumps(yaml.safe_load(POD.replace("NAME", f"train-{number}"))).encode()
                await cluster.client.request("POST", PODS.path("default"), body=body)
                await clock.sleep(1)
            assert cluster.service.engine.picking.fallbacks == {}
            return [value["spec"].get("nodeName", "") for value in cluster.api.store.values("pods")]

    zones = {n["metadata"]["name"]: n["metadata"]["labels"] for n in nodes(SPEC)}
    places = run(story())

    assert [zones[node]["topology.kubernetes.io/zone"] for node in places] == ["zone-a"] * 4
    assert places[0] == places[1] != places[2] == places[3]


def test_the_picker_is_twenty_lines() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 20
