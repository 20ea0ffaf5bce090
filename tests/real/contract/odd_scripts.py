"""What few people ask, and what must still not do harm: dry runs, odd deletes, odd updates."""

from tests.real.contract.asks import MAPS, NODES, PODS, Ask, node, pod
from tests.real.contract.exchange import MERGE

ONCE, DUMP = "causes are listed once", "Go values in a message"
SPACE = "/api/v1/namespaces/{ns}-more"
FINAL = {"name": "c", "finalizers": ["example.com/a"]}
ON_NODE = {"nodeName": "{ns}-n"}


def eviction(name: str, **options: object) -> Ask:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "{ns}"},
        "deleteOptions": options,
    }
    return Ask("POST", f"{PODS}/{name}/eviction", body)


SCRIPTS: dict[str, list[Ask]] = {
    "a dry run writes nothing, wherever it is asked for": [
        Ask("POST", PODS, pod("a")),
        Ask("DELETE", f"{PODS}/a", {"dryRun": ["All"]}),
        Ask("DELETE", f"{PODS}/a?dryRun=All"),
        Ask("DELETE", PODS, {"dryRun": ["All"]}),
        eviction("a", dryRun=["All"]),
        Ask("GET", f"{PODS}/a"),
        Ask("DELETE", f"{PODS}/a", {"dryRun": ["some"]}),
        Ask("DELETE", f"{PODS}/a?dryRun=some"),
        Ask("POST", f"{MAPS}?dryRun=true", {"metadata": {"name": "m"}}),
        Ask("PATCH", f"{PODS}/a?dryRun=true", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        eviction("a", dryRun=["some"]),
        Ask("GET", f"{PODS}/a"),
    ],
    "odd deletes": [
        Ask("POST", NODES, node("{ns}-n")),
        Ask("POST", PODS, pod("a", **ON_NODE)),
        Ask("DELETE", f"{PODS}/a/status"),
        Ask("DELETE", f"{PODS}/a", {"kind": "Zebra", "apiVersion": "v1"}),
        Ask("DELETE", f"{PODS}/a", {"propagationPolicy": "Zebra"}),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=x"),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=9999999999999999999999"),
        Ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 30}),
        Ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": -1}),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=-1"),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=0"),
        Ask("DELETE", f"{NODES}/{{ns}}-n"),
    ],
    "namespaces keep what holds them": [
        Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "{ns}-more"}}, copied=False),
        Ask("PUT", SPACE, {"metadata": {"name": "{ns}-more"}}),
        Ask("PATCH", SPACE, {"spec": {"finalizers": []}}, MERGE),
        Ask("PATCH", SPACE, {"metadata": {"labels": {"a": "b"}}}, MERGE),
        Ask("DELETE", "/api/v1/namespaces"),
        Ask("DELETE", "/api/v1/namespaces/default?dryRun=All"),
        Ask("DELETE", "/api/v1/namespaces/kube-system?dryRun=All"),
        Ask("DELETE", SPACE),
    ],
    "odd updates": [
        Ask("POST", MAPS, {"metadata": FINAL}),
        Ask(
            "PUT", f"{MAPS}/c", {"metadata": {**FINAL, "resourceVersion": "0"}, "data": {"a": "b"}}
        ),
        Ask("DELETE", f"{MAPS}/c"),
        Ask(
            "PATCH",
            f"{MAPS}/c",
            {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}},
            MERGE,
            but=ONCE,
        ),
        Ask("PATCH", f"{MAPS}/c", {"metadata": {"finalizers": None}}, MERGE),
        Ask("POST", PODS, pod("g", schedulingGates=[{"name": "x"}], **ON_NODE), copied=False),
        Ask("POST", PODS, pod("a", tolerations=[{"key": "a", "operator": "Exists"}])),
        Ask("PATCH", f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 5}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 6}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 4}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"terminationGracePeriodSeconds": 5}}, MERGE, but=DUMP),
        Ask("PATCH", f"{PODS}/a", {"spec": {"activeDeadlineSeconds": None}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"tolerations": []}}, MERGE),
        Ask("POST", PODS, pod("h", schedulingGates=[{}]), copied=False),
        Ask("POST", PODS, pod("b")),
        Ask("PATCH", f"{PODS}/b", {"spec": {"tolerations": []}}, MERGE),
        Ask("POST", f"{PODS}/a/binding", {"metadata": {}, "target": {"name": "n"}}),
    ],
    "odd parameters": [
        Ask("POST", MAPS, {"metadata": {"name": "m"}}),
        Ask("GET", f"{MAPS}?limit=-1"),
        Ask("GET", f"{MAPS}?limit=9999999999999999999999"),
        Ask("GET", f"{MAPS}?limit=x"),
        Ask("GET", f"{MAPS}?timeoutSeconds=x"),
        Ask("GET", f"{MAPS}?timeoutSeconds=-1"),
    ],
}
