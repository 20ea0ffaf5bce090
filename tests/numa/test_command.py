"""`bayplan fits` on files that hold topologies too."""

import json
from pathlib import Path

from click.testing import CliRunner

from bayplan.cli.main import main
from tests.numa.clusters import container, manifest, node, topology


def test_fits_looks_at_the_zones_of_a_dump(tmp_path: Path) -> None:
    own = {"cpu": "3", "memory": "1Gi"}
    running = manifest("old", container(own), nodeName="a")
    running |= {"status": {"qosClass": "Guaranteed", "startTime": "2026-01-01T00:00:00Z"}}
    zones = topology("a", [{"cpu": "4/1", "memory": "8Gi"}, {"cpu": "4/2", "memory": "8Gi"}])
    zones["topologyPolicies"] = ["SingleNUMANodePodLevel"]
    items = [
        {"kind": "Node", **node("a", {"cpu": "8", "memory": "16Gi"})},
        {"kind": "Pod", **running},
        zones,
    ]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    answers = []
    for cpus in ("2", "3"):
        wanted = manifest("p", container({"cpu": cpus, "memory": "1Gi"}))
        (tmp_path / "pod.json").write_text(json.dumps({"kind": "Pod", **wanted}))
        command = ["fits", str(tmp_path / "cluster.json"), str(tmp_path / "pod.json")]
        answers.append(CliRunner().invoke(main, command))

    assert answers[0].exit_code == 0, answers[0].output
    assert answers[1].exit_code == 1, answers[1].output
    assert "cannot align pod" in answers[1].output


def test_fits_counts_the_pods_of_all_files_whatever_the_fingerprint(tmp_path: Path) -> None:
    """What kubectl prints has no date, and an older kubelet's fingerprint has pods that ended."""
    own = container({"cpu": "3", "memory": "1Gi"})
    running = manifest("old", own, nodeName="a")
    running |= {"status": {"qosClass": "Guaranteed", "startTime": "2026-01-01T00:00:00Z"}}
    zones = topology("a", [{"cpu": "4/1", "memory": "8Gi"}, {"cpu": "4/4", "memory": "8Gi"}])
    zones["topologyPolicies"] = ["SingleNUMANodePodLevel"]
    zones["attributes"] = [{"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ff"}]
    first = [{"kind": "Node", **node("a", {"cpu": "8", "memory": "16Gi"})}, zones]
    for name, items in (("one", first), ("two", [{"kind": "Pod", **running}])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"kind": "List", "items": items}))
    (tmp_path / "pod.json").write_text(json.dumps({"kind": "Pod", **manifest("p", own)}))

    command = ["fits", *(str(tmp_path / f"{name}.json") for name in ("one", "two", "pod"))]

    assert CliRunner().invoke(main, command).exit_code == 0
