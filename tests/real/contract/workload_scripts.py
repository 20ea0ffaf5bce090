"""StatefulSets and Jobs as requests: what is filled in, refused, scaled and deleted.

No controller runs on either side here; what controllers do is in tests/real/test_workloads.py.
"""

from typing import Any

from tests.real.contract.asks import MAPS, PODS, Ask, pod
from tests.real.contract.exchange import JSON_PATCH, MERGE, STRATEGIC, TABLE

SETS = "/apis/apps/v1/namespaces/{ns}/statefulsets"
JOBS = "/apis/batch/v1/namespaces/{ns}/jobs"
ONCE = "causes are listed once"
CONTAINER = {"name": "main", "image": "registry.example/train:1"}
PORTS = [{"containerPort": 12345, "name": "ssh"}]
LIMITS = {"limits": {"nvidia.com/gpu": 1, "cpu": "1000m"}}


def stateful(name: str, template: Any = None, **spec: Any) -> dict[str, Any]:
    given = {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [CONTAINER]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": "train",
            "selector": {"matchLabels": {"app": "train"}},
            "template": template or given,
            **spec,
        },
    }


def job(name: str, labels: Any = None, template: Any = None, **spec: Any) -> dict[str, Any]:
    given = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "spec": {"template": template or given, **spec},
    }


def template(labels: Any = None, **spec: Any) -> dict[str, Any]:
    about = {"labels": labels or {"app": "train"}, "annotations": {"a": "b"}}
    return {"metadata": about, "spec": {"containers": [CONTAINER], **spec}}


FULL = template(
    containers=[{**CONTAINER, "ports": PORTS, "resources": LIMITS}],
    schedulerName="bayplan",
    nodeSelector={"zone": "a"},
    hostNetwork=False,
)
NEVER = {"restartPolicy": "Never"}

SCRIPTS: dict[str, list[Ask]] = {
    "a StatefulSet is created, read, listed, changed and deleted": [
        Ask("POST", SETS, stateful("a")),
        Ask("POST", SETS, stateful("a")),
        Ask("POST", SETS, stateful("b", FULL, replicas=3, podManagementPolicy="Parallel")),
        Ask("POST", SETS, stateful("c", serviceName=None, updateStrategy={"type": "OnDelete"})),
        Ask("GET", f"{SETS}/b"),
        Ask("GET", f"{SETS}/nobody"),
        Ask("GET", SETS),
        Ask("GET", SETS, accept=TABLE),
        Ask("PATCH", f"{SETS}/b", {"spec": {"replicas": 5}}, MERGE),
        Ask("PATCH", f"{SETS}/b", {"spec": {"replicas": 5}}, MERGE),
        Ask("PATCH", f"{SETS}/b", {"metadata": {"labels": {"x": "y"}}}, STRATEGIC),
        Ask("PATCH", f"{SETS}/b", [{"op": "remove", "path": "/spec/replicas"}], JSON_PATCH),
        Ask("PUT", f"{SETS}/b", stateful("b", FULL, podManagementPolicy="Parallel", replicas=2)),
        Ask("DELETE", f"{SETS}/a"),
        Ask("DELETE", f"{SETS}/b"),
        Ask("GET", SETS),
    ],
    "a strategic patch knows the containers of a template": [
        Ask("POST", SETS, stateful("a")),
        Ask(
            "PATCH",
            f"{SETS}/a",
            {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}},
            STRATEGIC,
        ),
    ],
    "the status of a StatefulSet": [
        Ask("POST", SETS, {**stateful("a"), "status": {"replicas": 7}}),
        Ask("PATCH", f"{SETS}/a/status", {"status": {"replicas": 2, "readyReplicas": 1}}, MERGE),
        Ask("PATCH", f"{SETS}/a/status", {"spec": {"replicas": 9}}, MERGE),
        Ask("GET", f"{SETS}/a/status"),
        Ask("GET", f"{SETS}/a", accept=TABLE),
    ],
    "a StatefulSet is scaled": [
        Ask("POST", SETS, stateful("a")),
        Ask("GET", f"{SETS}/a/scale"),
        Ask("PATCH", f"{SETS}/a/scale", {"spec": {"replicas": 4}}, MERGE),
        Ask("GET", f"{SETS}/a"),
        Ask(
            "PUT",
            f"{SETS}/a/scale",
            {"metadata": {"name": "a", "namespace": "{ns}"}, "spec": {"replicas": 0}},
        ),
        Ask("PATCH", f"{SETS}/a/scale", {"spec": {"replicas": -1}}, MERGE),
        Ask("PATCH", f"{SETS}/nobody/scale", {"spec": {"replicas": 1}}, MERGE),
        Ask(
            "PATCH",
            f"{SETS}/a/scale",
            {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 2}},
            MERGE,
        ),
        Ask("DELETE", f"{SETS}/a/scale"),
    ],
    "bad StatefulSets are refused": [
        Ask("POST", SETS, stateful("Upper_Case"), copied=False),
        Ask("POST", SETS, stateful("a", selector=None), copied=False),
        Ask("POST", SETS, stateful("a", selector={}), copied=False),
        Ask("POST", SETS, stateful("a", template({"app": "other"})), copied=False),
        Ask("POST", SETS, stateful("a", replicas=-1), copied=False),
        Ask("POST", SETS, stateful("a", minReadySeconds=-1), copied=False),
        Ask("POST", SETS, stateful("a", podManagementPolicy="Sometimes"), copied=False),
        Ask("POST", SETS, stateful("a", serviceName="no_name"), copied=False),
        Ask("POST", SETS, stateful("a", template(restartPolicy="Never")), copied=False),
        Ask("POST", SETS, stateful("a", template(activeDeadlineSeconds=3)), copied=False),
        Ask("POST", SETS, stateful("a", template(containers=[])), copied=False),
        Ask("POST", SETS, stateful("a", template(containers=[{"name": "c"}])), copied=False),
        Ask("POST", SETS, stateful("a", replicas="3"), but="Go values in a message", copied=False),
    ],
    "what cannot be changed of a StatefulSet": [
        Ask("POST", SETS, stateful("a")),
        Ask("PATCH", f"{SETS}/a", {"spec": {"serviceName": "other"}}, MERGE),
        Ask("PATCH", f"{SETS}/a", {"spec": {"podManagementPolicy": "Parallel"}}, MERGE),
        Ask("PATCH", f"{SETS}/a", {"spec": {"replicas": -2}}, MERGE),
    ],
    "a Job is created, read, listed, changed and deleted": [
        Ask("POST", JOBS, job("a")),
        Ask("POST", JOBS, job("a")),
        Ask("POST", JOBS, job("b", {"x": "y"}, template(**NEVER), parallelism=2, completions=4)),
        Ask("POST", JOBS, job("c", None, template(restartPolicy="OnFailure"), parallelism=3)),
        Ask("GET", f"{JOBS}/b"),
        Ask("GET", f"{JOBS}/nobody"),
        Ask("GET", JOBS),
        Ask("GET", JOBS, accept=TABLE),
        Ask("PATCH", f"{JOBS}/b", {"spec": {"parallelism": 1}}, MERGE),
        Ask("PATCH", f"{JOBS}/b", {"spec": {"suspend": True}}, MERGE),
        Ask("DELETE", f"{JOBS}/b", {"propagationPolicy": "Background"}),
        Ask("DELETE", f"{JOBS}/a"),
        Ask("GET", f"{JOBS}/a", accept=TABLE),
        Ask("DELETE", f"{JOBS}/a", {"propagationPolicy": "Background"}),
        Ask("GET", JOBS),
    ],
    "bad Jobs are refused": [
        Ask("POST", JOBS, job("Upper_Case"), copied=False),
        Ask("POST", JOBS, job("a", None, template()), copied=False),
        Ask("POST", JOBS, job("a", None, template(restartPolicy="Always")), copied=False),
        Ask("POST", JOBS, job("a", parallelism=-1), copied=False),
        Ask("POST", JOBS, job("a", completions=-1), copied=False),
        Ask("POST", JOBS, job("a", backoffLimit=-1), copied=False),
        Ask("POST", JOBS, job("a", completionMode="Sometimes"), copied=False),
        Ask("POST", JOBS, job("a", podReplacementPolicy="Sometimes"), copied=False),
        Ask("POST", JOBS, job("a", None, template(containers=[], **NEVER)), copied=False),
    ],
    "what cannot be changed of a Job": [
        Ask("POST", JOBS, job("a")),
        Ask("PATCH", f"{JOBS}/a", {"spec": {"completions": 3}}, MERGE, but=ONCE),
        Ask("PATCH", f"{JOBS}/a", {"spec": {"completionMode": "Other"}}, MERGE, but=ONCE),
    ],
    "the status of a Job": [
        Ask("POST", JOBS, job("a")),
        Ask("PATCH", f"{JOBS}/a/status", {"status": {"active": 1}}, MERGE),
        Ask("GET", f"{JOBS}/a", accept=TABLE),
    ],
    "what a delete does to those that are owned": [
        Ask("POST", MAPS, {"metadata": {"name": "one"}}),
        Ask("DELETE", f"{MAPS}/one", {"propagationPolicy": "Orphan"}),
        Ask("GET", f"{MAPS}/one"),
        Ask("DELETE", f"{MAPS}/one", {"propagationPolicy": "Foreground"}),
        Ask("DELETE", f"{MAPS}/one"),
        Ask("DELETE", f"{MAPS}/one", {"propagationPolicy": "Background"}),
        Ask("POST", PODS, pod("a")),
        Ask("DELETE", f"{PODS}/a?propagationPolicy=Foreground"),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}}, MERGE),
        Ask("GET", f"{PODS}/a"),
    ],
}
