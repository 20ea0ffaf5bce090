"""A thousand pretend nodes and ten thousand pods, in a process of their own: less than 1 GiB."""

import json
import subprocess
import sys

SCRIPT = """
import json
from bayplan.cli.embedded import running
from bayplan.kube.client import PODS
from bayplan.local.spec import nodes
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration

def pod(number):
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1" if number % 10 < 8 else "0"}
    container = {"name": "main", "image": "train:1", "resources": {"limits": limits}}
    spec = {"schedulerName": "bayplan", "containers": [container]}
    return json.dumps({"metadata": {"name": f"pod-{number}"}, "spec": spec}).encode()

async def story():
    clock = VirtualClock()
    async with running(nodes("8xA100*1000"), Configuration(), clock, seed=1) as cluster:
        for number in range(10_000):
            await cluster.client.request("POST", PODS.path("default"), body=pod(number))
        await clock.sleep(30)
        values = cluster.api.store.values("pods")
        return sum(value["status"]["phase"] == "Running" for value in values)

runs = run(story())
with open("/proc/self/status") as told:  # getrusage() would tell of the test's own process too
    (most,) = (int(line.split()[1]) >> 10 for line in told if line.startswith("VmHWM:"))
print(json.dumps({"running": runs, "mib": most}))
"""


def test_a_thousand_nodes_and_ten_thousand_pods_take_less_than_a_gibibyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])

    assert told["running"] >= 8_000
    assert told["mib"] < 1024
