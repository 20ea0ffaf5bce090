"""What both refuse: objects, bodies, amounts and selectors that are not what they should be."""

from typing import Any

from tests.real.contract.asks import BUDGETS, LEASES, MAPS, NODES, PODS, Ask, budget, lease, pod
from tests.real.contract.exchange import JSON_PATCH, MERGE, STRATEGIC

DUMP, PARSER = "Go values in a message", "the words of a parser"
TOO_LARGE = b'{"metadata":{"name":"large"},"data":{"k":"' + b"x" * (3 << 20) + b'"}}'


def _asks(resources: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": resources}
    return pod("a", containers=[container])


SCRIPTS: dict[str, list[Ask]] = {
    "bad budgets": [
        Ask("POST", BUDGETS, budget("b", maxUnavailable=1), copied=False),
        Ask("POST", BUDGETS, budget("b", minAvailable=-1), copied=False),
        Ask("POST", BUDGETS, budget("b", minAvailable="half"), copied=False),
        Ask("POST", BUDGETS, budget("b", minAvailable=None, maxUnavailable=0)),
    ],
    "bodies that are not what they should be": [
        Ask("POST", PODS, b"{", but=PARSER),
        Ask("POST", PODS, b"", but=PARSER),
        Ask("POST", PODS, b"[]", but=PARSER),
        Ask("POST", PODS, b'"x"', but=PARSER),
        Ask("POST", PODS, {**pod("a"), "kind": "Node"}, copied=False),
        Ask("POST", PODS, {**pod("a"), "kind": "Zebra"}, copied=False),
        Ask("POST", PODS, {**pod("a"), "apiVersion": "v2"}, copied=False),
        Ask("POST", PODS, {**pod("a"), "apiVersion": "apps/v1"}, copied=False),
        Ask("POST", LEASES, {**lease("x"), "apiVersion": "v1"}, copied=False),
        Ask("POST", PODS, {**pod("a"), "spec": {"containers": {}}}, copied=False, but=DUMP),
        Ask("POST", PODS, {**pod("a"), "metadata": []}, copied=False, but=DUMP),
        Ask(
            "POST",
            PODS,
            {**pod("a"), "metadata": {"name": "a", "labels": {"x": 1}}},
            copied=False,
            but=DUMP,
        ),
        Ask("POST", PODS, pod("a"), "text/plain", copied=False),
        Ask("POST", PODS, pod("a"), "application/zebra", copied=False),
        Ask("POST", PODS, pod("a")),
        Ask("PATCH", f"{PODS}/a", {}, "application/json"),
        Ask("PATCH", f"{PODS}/a", {}, "application/zebra-patch+json"),
        Ask("PATCH", f"{PODS}/a", [], MERGE, but=PARSER),
        Ask("PATCH", f"{PODS}/a", b"{", MERGE, but=PARSER),
        Ask("PATCH", f"{PODS}/a", b"{", STRATEGIC, but=PARSER),
        Ask("PATCH", f"{PODS}/a", {}, JSON_PATCH, but=PARSER),
        Ask("PATCH", f"{PODS}/a", [{"op": "zebra", "path": "/x"}], JSON_PATCH, but=PARSER),
        Ask("PATCH", f"{PODS}/a", [{"op": "remove", "path": "/x/y"}], JSON_PATCH, but=PARSER),
        Ask(
            "PATCH",
            f"{PODS}/a",
            [{"op": "test", "path": "/metadata/name", "value": "b"}],
            JSON_PATCH,
            but=PARSER,
        ),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"name": "b"}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"namespace": "other"}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"metadata": None}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"kind": "Node"}, MERGE, but=PARSER),
        Ask("PATCH", f"{PODS}/a", {"apiVersion": "v2"}, MERGE, but=PARSER),
        Ask("PATCH", f"{PODS}/a", {"apiVersion": "v2"}, STRATEGIC),
        Ask("PATCH", f"{PODS}/a", {"kind": None}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"nodeName": "n1"}}, MERGE, but=DUMP),
        Ask("DELETE", f"{PODS}/a", b"{", but=PARSER),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=x"),
        Ask("POST", MAPS, TOO_LARGE),
    ],
    "bad resources": [
        Ask("POST", PODS, _asks({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
        Ask("POST", PODS, _asks({"requests": {"nvidia.com/gpu": "1"}})),
        Ask("POST", PODS, _asks({"limits": {"nvidia.com/gpu": "0.5"}})),
        Ask(
            "POST",
            PODS,
            _asks({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}}),
        ),
        Ask("POST", PODS, _asks({"requests": {"cpu": "-1"}})),
        Ask("POST", PODS, _asks({"requests": {"cpu": "lots"}}), but=DUMP),
        Ask("POST", PODS, _asks({"requests": {"cpu": 2, "memory": "1024Mi"}})),
    ],
    "bad selectors": [
        Ask("GET", f"{PODS}?labelSelector=a%20in%20%28b", but=PARSER),
        Ask("GET", f"{PODS}?labelSelector=a%20b", but=PARSER),
        Ask("GET", f"{PODS}?labelSelector=-a-%3Db", but=PARSER),
        Ask("GET", f"{PODS}?fieldSelector=x"),
        Ask("GET", f"{NODES}?fieldSelector=spec.colour%3Dred"),
    ],
}
