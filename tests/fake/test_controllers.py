"""What the embedded controllers do to budgets, claims and namespaces, one settling at a time."""

import json
from typing import Any

import pytest

from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.requests import Request

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = "application/merge-patch+json"
CLAIM = {
    "metadata": {"name": "c"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture
def api() -> Api:
    return Api(RealClock())


def ask(api: Api, method: str, path: str, body: Any = None, sort: str = "application/json") -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    answer = api.handle(Request(method, path, {}, raw, sort))
    return answer.status, json.loads(answer.body)


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i"}
    return {
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"containers": [container], **spec},
    }


def test_a_claim_goes_when_no_pod_mounts_it(api: Api) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    ask(api, "POST", CLAIMS, CLAIM)
    ask(api, "POST", PODS, _pod("a", volumes=[volume]))

    ask(api, "DELETE", f"{CLAIMS}/c")
    Controllers(api).settle()
    assert ask(api, "GET", f"{CLAIMS}/c")[0] == 200

    ask(api, "DELETE", f"{PODS}/a")
    Controllers(api).settle()
    assert ask(api, "GET", f"{CLAIMS}/c")[0] == 404


def test_a_volume_goes_when_it_is_not_bound(api: Api) -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    volume = {"metadata": {"name": "v"}, "spec": {**spec, "hostPath": {"path": "/x"}}}
    ask(api, "POST", "/api/v1/persistentvolumes", volume)
    path = "/api/v1/persistentvolumes/v"
    ask(api, "PATCH", f"{path}/status", {"status": {"phase": "Bound"}}, MERGE)

    ask(api, "DELETE", path)
    Controllers(api).settle()
    assert ask(api, "GET", path)[0] == 200

    ask(api, "PATCH", f"{path}/status", {"status": {"phase": "Released"}}, MERGE)
    Controllers(api).settle()
    assert ask(api, "GET", path)[0] == 404


def test_a_budget_says_how_many_may_go(api: Api) -> None:
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    ask(api, "POST", BUDGETS, {"metadata": {"name": "b"}, "spec": budget})
    for name in ("a", "b"):
        ask(api, "POST", PODS, _pod(name, nodeName="n"))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        ask(api, "PATCH", f"{PODS}/{name}/status", {"status": ready}, MERGE)
    controllers = Controllers(api)
    controllers.settle()
    _, found = ask(api, "GET", f"{BUDGETS}/b")
    assert found["status"]["disruptionsAllowed"] == 1
    assert [c["reason"] for c in found["status"]["conditions"]] == ["SufficientPods"]

    for name, answer in (("a", 201), ("b", 429)):
        eviction = {"metadata": {"name": name}}
        assert ask(api, "POST", f"{PODS}/{name}/eviction", eviction)[0] == answer
    controllers.settle()
    _, found = ask(api, "GET", f"{BUDGETS}/b")
    assert [c["reason"] for c in found["status"]["conditions"]] == ["InsufficientPods"]

    revision = api.store.revision
    controllers.settle()
    assert api.store.revision == revision  # nothing more to write


def test_a_namespace_takes_what_is_in_it_along(api: Api) -> None:
    ask(api, "POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    path = "/api/v1/namespaces/team"
    ask(api, "POST", f"{path}/pods", _pod("a"))
    ask(api, "POST", f"{path}/configmaps", {"metadata": {"name": "m"}})

    assert ask(api, "DELETE", path)[1]["status"]["phase"] == "Terminating"
    assert ask(api, "POST", f"{path}/configmaps", {"metadata": {"name": "n"}})[0] == 403
    Controllers(api).settle()

    assert ask(api, "GET", path)[0] == 404
    assert ask(api, "GET", f"{path}/pods/a")[0] == 404
