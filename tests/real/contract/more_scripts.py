"""What is asked less often: budgets, volumes, classes, whole objects, pages, and nonsense."""

from typing import Any

from tests.real.contract.asks import (
    BUDGETS,
    CLAIMS,
    CORE_EVENTS,
    EVENTS,
    LEASES,
    MAPS,
    NOBODY,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    VOLUMES,
    Ask,
    budget,
    claim,
    core_event,
    event,
    lease,
    node,
    pod,
    priority_class,
    runs,
)
from tests.real.contract.exchange import MERGE, STRATEGIC

CORE = "/api/v1/namespaces/{ns}"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}"
RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGET_PATH = "/apis/{ns}.example.com/v1/namespaces/{ns}/widgets"
WIDGETS = {
    "metadata": {"name": "widgets.{ns}.example.com"},
    "spec": {
        "group": "{ns}.example.com",
        "names": {"plural": "widgets", "kind": "Widget"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
ONCE, DUMP, PARSER = (
    "causes are listed once",
    "Go values in a message",
    "the words of a parser",
)
GONE = {"uid": NOBODY}
TARGETED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
HEALTHY = {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1}


def widget(name: str, **spec: Any) -> dict[str, Any]:
    about = {"apiVersion": "{ns}.example.com/v1", "kind": "Widget"}
    return {**about, "metadata": {"name": name}, "spec": spec}


SCRIPTS: dict[str, list[Ask]] = {
    "a whole object is put": [
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a"}}),
        Ask("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}),
        Ask(
            "PUT",
            f"{MAPS}/a",
            {"metadata": {"name": "a", "resourceVersion": "{resourceVersion}"}, "data": {"k": "w"}},
        ),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a", "resourceVersion": "1"}}),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a", "uid": NOBODY}}),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a", "resourceVersion": "x"}}),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a", "namespace": "other"}}),
        Ask("PUT", f"{MAPS}/a", {"data": {}}),
        Ask("GET", f"{MAPS}/a"),
        Ask("POST", MAPS, {"metadata": {"name": "b", "resourceVersion": "7"}}, copied=False),
        Ask("POST", PODS, pod("a")),
        Ask("PUT", f"{PODS}/a", pod("a", schedulerName="other"), but=DUMP),
        Ask("PUT", f"{PODS}/a/status", {**pod("a"), "status": {"phase": "Running"}}),
        Ask("PUT", f"{PODS}/nobody/status", pod("nobody")),
        Ask("PUT", f"{LEASES}/new", {**lease("x"), "metadata": {"name": "new"}}),
        Ask("PUT", f"{EVENTS}/new", {**event("new")}),
    ],
    "pods that go at once": [
        Ask("POST", PODS, pod("a")),
        Ask("DELETE", f"{PODS}/a?gracePeriodSeconds=0"),
        *runs("b"),
        Ask("DELETE", f"{PODS}/b?gracePeriodSeconds=0", {"propagationPolicy": "Background"}),
        *runs("c"),
        Ask("DELETE", f"{PODS}/c", {"gracePeriodSeconds": -1}),
        Ask("DELETE", f"{PODS}/c", {"gracePeriodSeconds": 20}),
        Ask("DELETE", f"{PODS}/c"),
        *runs("d"),
        Ask("PATCH", f"{PODS}/d/status", {"status": {"phase": "Succeeded"}}, MERGE),
        Ask("DELETE", f"{PODS}/d", {"preconditions": {"resourceVersion": "1"}}),
        Ask("DELETE", f"{PODS}/d", {"preconditions": {"uid": "{uid}"}}),
        Ask("POST", PODS, pod("e")),
        Ask("DELETE", f"{PODS}/e", {"preconditions": {"resourceVersion": "{resourceVersion}"}}),
        *runs("f"),
        Ask("DELETE", f"{PODS}/f"),
        Ask("PATCH", f"{PODS}/f", {"metadata": {"labels": {"x": "y"}}}, MERGE),
        Ask("DELETE", f"{PODS}/f", {"gracePeriodSeconds": 0}),
    ],
    "what holds an object": [
        Ask("POST", MAPS, {"metadata": {"name": "a", "finalizers": ["x.io/hold"]}}, copied=False),
        Ask("POST", MAPS, {"metadata": {"name": "b"}}),
        Ask("DELETE", f"{MAPS}/b"),
        Ask("DELETE", f"{MAPS}/a"),
        Ask("DELETE", f"{MAPS}/a"),
        Ask("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, MERGE),
        Ask("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": []}}, MERGE),
        Ask("GET", f"{MAPS}/a"),
    ],
    "many at once": [
        *[Ask("POST", PODS, pod(name)) for name in ("a", "b")],
        *runs("c"),
        Ask("PATCH", f"{PODS}/b", {"metadata": {"labels": {"app": "web"}}}, MERGE),
        Ask("DELETE", f"{PODS}?labelSelector=app%3Dweb"),
        Ask("DELETE", f"{PODS}?dryRun=All"),
        Ask("DELETE", PODS, {"gracePeriodSeconds": 5}),
        Ask("GET", PODS),
        Ask("POST", MAPS, {"metadata": {"name": "a"}}),
        Ask("DELETE", MAPS),
        Ask("POST", NODES, node("n1")),
        Ask("DELETE", f"{NODES}?labelSelector=zone%3Db"),
        Ask("DELETE", NODES),
    ],
    "lists in pages": [
        *[Ask("POST", MAPS, {"metadata": {"name": name}}) for name in "abcde"],
        Ask("GET", f"{MAPS}?limit=2"),
        Ask("DELETE", f"{MAPS}/c"),
        Ask("GET", f"{MAPS}?limit=2&continue={{continue}}"),
        Ask("GET", f"{MAPS}?limit=2&continue={{continue}}"),
        Ask("GET", f"{MAPS}?limit=2&continue={{continue}}"),
        Ask("GET", f"{MAPS}?limit=1&labelSelector=%21x"),
        Ask("GET", f"{MAPS}?limit=1&labelSelector=x"),
        Ask("GET", f"{MAPS}?limit=0"),
        Ask("GET", f"{MAPS}?limit=5"),
        Ask("GET", f"{MAPS}?limit=x"),
        Ask("GET", f"{MAPS}?continue=nonsense", but=PARSER),
        Ask("GET", f"{MAPS}?limit=1&resourceVersion=0"),
        Ask("GET", f"{MAPS}?resourceVersion=0"),
        Ask("GET", f"{MAPS}?resourceVersion={{resourceVersion}}"),
        Ask("GET", f"{MAPS}?resourceVersion=x"),
        Ask("GET", f"{MAPS}?resourceVersion=999999999999999999999"),
        Ask("GET", f"{MAPS}?resourceVersionMatch=NotOlderThan"),
        Ask("GET", f"{MAPS}?resourceVersion=1&resourceVersionMatch=Zebra"),
    ],
    "a budget's status": [
        Ask("POST", BUDGETS, budget("b")),
        Ask("GET", f"{BUDGETS}/b"),
        Ask("PATCH", f"{BUDGETS}/b/status", {"status": HEALTHY}, MERGE),
        Ask("PATCH", f"{BUDGETS}/b", {"spec": {"minAvailable": "50%"}}, MERGE),
        Ask("PATCH", f"{BUDGETS}/b", {"status": {"expectedPods": 9}}, MERGE),
        Ask("PUT", f"{BUDGETS}/b", budget("b")),
        Ask(
            "PUT",
            f"{BUDGETS}/b/status",
            {
                **budget("b", minAvailable=7),
                "metadata": {"name": "b", "resourceVersion": "{resourceVersion}"},
                "status": {**HEALTHY, "disruptionsAllowed": 1},
            },
        ),
        Ask("GET", BUDGETS),
        Ask("DELETE", f"{BUDGETS}/b"),
    ],
    "evictions and the budget that protects": [
        *runs("a"),
        *runs("c"),
        Ask("POST", BUDGETS, budget("b")),
        Ask("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}}),
        Ask(
            "PATCH",
            f"{BUDGETS}/b/status",
            {"status": {**HEALTHY, "currentHealthy": 1, "disruptionsAllowed": 0}},
            MERGE,
        ),
        Ask("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}}),
        Ask("PATCH", f"{BUDGETS}/b/status", {"status": {"disruptionsAllowed": 1}}, MERGE),
        Ask("POST", f"{PODS}/a/eviction?dryRun=All", {"metadata": {"name": "a"}}),
        Ask("GET", f"{BUDGETS}/b"),
        Ask(
            "POST",
            f"{PODS}/a/eviction",
            {"metadata": {"name": "a"}, "deleteOptions": {"gracePeriodSeconds": 3}},
        ),
        Ask("GET", f"{BUDGETS}/b"),
        Ask("POST", f"{PODS}/c/eviction", {"metadata": {"name": "c"}}),
        Ask("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}}),
        Ask("GET", PODS),
    ],
    "evictions that no budget refuses": [
        Ask("POST", PODS, pod("waits")),
        *runs("sick", ready=False),
        *runs("well"),
        Ask("POST", BUDGETS, budget("b")),
        Ask("POST", f"{PODS}/waits/eviction", {"metadata": {"name": "waits"}}),
        Ask("PATCH", f"{BUDGETS}/b/status", {"status": {**HEALTHY}}, MERGE),
        Ask("POST", f"{PODS}/sick/eviction", {"metadata": {"name": "sick"}}),
        Ask("POST", f"{PODS}/well/eviction", {"metadata": {"name": "other"}}),
        Ask("POST", f"{PODS}/well/eviction", {"metadata": {}}),
        Ask(
            "POST",
            f"{PODS}/well/eviction",
            {"metadata": {"name": "well"}, "deleteOptions": {"preconditions": {"uid": NOBODY}}},
        ),
        Ask("POST", BUDGETS, budget("second")),
        Ask("POST", f"{PODS}/well/eviction", {"metadata": {"name": "well"}}),
        Ask("POST", PODS, {**pod("free"), "metadata": {"name": "free"}}),
        Ask("POST", f"{PODS}/free/eviction", {"metadata": {"name": "free"}}),
    ],
    "evictions, marks and deletes of a pod that was there before": [
        Ask("POST", PODS, pod("waits")),
        *runs("well"),
        *(
            ask
            for name in ("waits", "well")
            for ask in (
                Ask(
                    "POST",
                    f"{PODS}/{name}/eviction",
                    {"metadata": {"name": name}, "deleteOptions": {"preconditions": GONE}},
                ),
                Ask(
                    "PATCH",
                    f"{PODS}/{name}/status",
                    {"metadata": GONE, "status": {"conditions": [TARGETED]}},
                    STRATEGIC,
                    but=ONCE,
                ),
                Ask("DELETE", f"{PODS}/{name}", {"preconditions": GONE}),
                Ask("GET", f"{PODS}/{name}"),
            )
        ),
        Ask("POST", BUDGETS, budget("b")),
        Ask("PATCH", f"{BUDGETS}/b/status", {"status": {**HEALTHY}}, MERGE),
        Ask(
            "POST",
            f"{PODS}/well/eviction",
            {"metadata": {"name": "well"}, "deleteOptions": {"preconditions": GONE}},
        ),
        Ask("GET", f"{PODS}/well"),
        Ask("GET", f"{BUDGETS}/b"),
    ],
    "nominations come and go with the condition": [
        Ask("POST", PODS, pod("a")),
        *(
            ask
            for node in ("n1", None)
            for ask in (
                Ask(
                    "PATCH",
                    f"{PODS}/a/status",
                    {"status": {"conditions": [UNSCHEDULABLE], "nominatedNodeName": node}},
                    STRATEGIC,
                ),
                Ask("GET", f"{PODS}/a"),
            )
        ),
    ],
    "a sick pod under AlwaysAllow": [
        *runs("sick", ready=False),
        Ask("POST", BUDGETS, budget("b", unhealthyPodEvictionPolicy="AlwaysAllow")),
        Ask(
            "PATCH",
            f"{BUDGETS}/b/status",
            {"status": {**HEALTHY, "currentHealthy": 0}},
            MERGE,
        ),
        Ask("POST", f"{PODS}/sick/eviction", {"metadata": {"name": "sick"}}),
        Ask("GET", f"{PODS}/sick"),
    ],
    "events as older programs write them": [
        Ask("POST", CORE_EVENTS, core_event("a.1")),
        Ask("GET", f"{EVENTS}/a.1"),
        Ask("PATCH", f"{CORE_EVENTS}/a.1", {"count": 2}, STRATEGIC),
        Ask("POST", CORE_EVENTS, {"metadata": {"name": "bare"}}, copied=False),
        Ask(
            "POST",
            CORE_EVENTS,
            core_event("x", involvedObject={"kind": "Pod", "namespace": "other", "name": "a"}),
            copied=False,
        ),
        Ask(
            "POST",
            CORE_EVENTS,
            core_event("n", involvedObject={"kind": "Node", "name": "n1"}),
            copied=False,
        ),
        Ask("POST", EVENTS, event("s.1"), copied=False),
        Ask(
            "PATCH",
            f"{EVENTS}/s.1",
            {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}},
            MERGE,
        ),
        Ask("GET", f"{CORE_EVENTS}/s.1"),
        Ask("GET", EVENTS),
        Ask("GET", f"{CORE_EVENTS}?fieldSelector=involvedObject.kind%3DPod%2Ctype%21%3DNormal"),
        Ask("DELETE", f"{EVENTS}/a.1"),
        Ask("DELETE", CORE_EVENTS),
    ],
    "claims, volumes and their classes": [
        Ask(
            "POST",
            STORAGE_CLASSES,
            {"metadata": {"name": "{ns}-fast"}, "provisioner": "example.com/disk"},
        ),
        Ask("POST", CLAIMS, claim("a", storageClassName="{ns}-fast")),
        Ask("POST", CLAIMS, claim("b")),
        Ask("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": {}}, copied=False, but=ONCE),
        Ask("GET", CLAIMS),
        Ask(
            "PATCH",
            f"{CLAIMS}/a",
            {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}},
            MERGE,
        ),
        Ask("PATCH", f"{CLAIMS}/a/status", {"status": {"phase": "Bound"}}, MERGE),
        Ask(
            "POST",
            VOLUMES,
            {
                "metadata": {"name": "{ns}-v"},
                "spec": {
                    "capacity": {"storage": "10240Mi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": "/x"},
                    "storageClassName": "{ns}-fast",
                },
            },
        ),
        Ask("PATCH", f"{CLAIMS}/b", {"spec": {"volumeName": "{ns}-v"}}, MERGE),
        Ask("GET", f"{STORAGE_CLASSES}/{{ns}}-fast"),
        Ask("DELETE", f"{CLAIMS}/a"),
        Ask("DELETE", f"{VOLUMES}/{{ns}}-v"),
        Ask("PATCH", f"{VOLUMES}/{{ns}}-v", {"metadata": {"finalizers": None}}, MERGE),
        Ask("DELETE", f"{STORAGE_CLASSES}/{{ns}}-fast"),
    ],
    "priority classes": [
        Ask("POST", PRIORITY_CLASSES, priority_class("high", 1000, description="urgent")),
        Ask("POST", PODS, pod("a", priorityClassName="{ns}-high")),
        Ask("POST", PODS, pod("b", priorityClassName="{ns}-high", priority=5)),
        Ask("POST", PODS, pod("c", priority=5)),
        Ask(
            "POST",
            PRIORITY_CLASSES,
            priority_class("usual", 10, globalDefault=True, preemptionPolicy="Never"),
            copied=False,
        ),
        Ask(
            "POST",
            PRIORITY_CLASSES,
            priority_class("other", 10, globalDefault=True),
            copied=False,
        ),
        Ask("POST", PODS, pod("d")),
        Ask("POST", PODS, pod("e", priorityClassName="{ns}-high")),
        Ask("PATCH", f"{PRIORITY_CLASSES}/{{ns}}-high", {"value": 7}, MERGE, but=ONCE),
        Ask("PATCH", f"{PRIORITY_CLASSES}/{{ns}}-high", {"description": "x"}, MERGE),
        Ask("GET", f"{PRIORITY_CLASSES}/system-node-critical"),
        Ask("DELETE", f"{PRIORITY_CLASSES}/{{ns}}-usual"),
        Ask("POST", PODS, pod("f")),
        Ask("DELETE", f"{PRIORITY_CLASSES}/{{ns}}-high"),
        Ask("POST", PRIORITY_CLASSES, priority_class("huge", 2_000_000_001), copied=False),
    ],
    "runtime classes": [
        Ask(
            "POST",
            RUNTIME_CLASSES,
            {
                "metadata": {"name": "{ns}-vm"},
                "handler": "vm",
                "overhead": {"podFixed": {"cpu": "0.25", "memory": "128Mi"}},
                "scheduling": {
                    "nodeSelector": {"vm": "yes"},
                    "tolerations": [{"key": "vm", "operator": "Exists", "effect": "NoSchedule"}],
                },
            },
        ),
        Ask("POST", PODS, pod("a", runtimeClassName="{ns}-vm")),
        Ask("POST", PODS, pod("b", runtimeClassName="{ns}-vm", nodeSelector={"vm": "no"})),
        Ask("POST", PODS, pod("c", runtimeClassName="{ns}-vm", overhead={"cpu": "1"})),
        Ask("POST", PODS, pod("d", runtimeClassName="nobody")),
        Ask("POST", PODS, pod("e", overhead={"cpu": "1"})),
        Ask("GET", f"{RUNTIME_CLASSES}/{{ns}}-vm"),
        Ask("DELETE", f"{RUNTIME_CLASSES}/{{ns}}-vm"),
    ],
    "the other kinds": [
        Ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "a"}}),
        Ask("DELETE", f"{CORE}/serviceaccounts/a"),
        Ask("POST", f"{CORE}/secrets", {"metadata": {"name": "a"}, "stringData": {"k": "v"}}),
        Ask("GET", f"{CORE}/secrets?fieldSelector=type%3DOpaque"),
        Ask("DELETE", f"{CORE}/secrets/a"),
        Ask(
            "POST",
            f"{CORE}/resourcequotas",
            {"metadata": {"name": "a"}, "spec": {"hard": {"pods": "99"}}},
        ),
        Ask("DELETE", f"{CORE}/resourcequotas/a"),
        Ask("POST", f"{RBAC}/roles", {"metadata": {"name": "a"}, "rules": [RULE]}),
        Ask("PATCH", f"{RBAC}/roles/a", {"rules": [RULE, RULE]}, MERGE),
        Ask("DELETE", f"{RBAC}/roles/a"),
        Ask(
            "POST",
            f"{RBAC}/rolebindings",
            {
                "metadata": {"name": "a"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
                "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "{ns}"}],
            },
        ),
        Ask("DELETE", f"{RBAC}/rolebindings/a"),
        Ask(
            "POST",
            "/apis/resource.k8s.io/v1/deviceclasses",
            {"metadata": {"name": "{ns}-gpu"}, "spec": {}},
        ),
        Ask(
            "PATCH",
            "/apis/resource.k8s.io/v1/deviceclasses/{ns}-gpu",
            {"metadata": {"labels": {"a": "b"}}},
            MERGE,
        ),
        Ask("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/{ns}-gpu"),
        Ask(
            "POST",
            "/apis/storage.k8s.io/v1/csinodes",
            {
                "metadata": {"name": "{ns}-n"},
                "spec": {"drivers": [{"name": "x.io", "nodeID": "n", "topologyKeys": ["a"]}]},
            },
        ),
        Ask("DELETE", "/apis/storage.k8s.io/v1/csinodes/{ns}-n"),
        Ask("DELETE", "/api/v1/namespaces/nowhere"),
    ],
}

# Once both serve WIDGETS, which a real one does a moment after it was told.
CUSTOM: list[Ask] = [
    Ask("POST", WIDGET_PATH, widget("a", size=1)),
    Ask("POST", WIDGET_PATH, {"metadata": {"name": "b"}}, but=PARSER, copied=False),
    Ask("POST", WIDGET_PATH, widget("a", size=1)),
    Ask("GET", f"{WIDGET_PATH}/a"),
    Ask("GET", WIDGET_PATH),
    Ask("PATCH", f"{WIDGET_PATH}/a", {"spec": {"size": 2}}, MERGE),
    Ask(
        "PATCH",
        f"{WIDGET_PATH}/a/status",
        {"status": {"phase": "x"}, "spec": {"size": 3}},
        MERGE,
    ),
    Ask("PATCH", f"{WIDGET_PATH}/a", {"status": {"phase": "y"}}, MERGE),
    Ask("PATCH", f"{WIDGET_PATH}/a", {"spec": {"size": 4}}, STRATEGIC),
    Ask("PUT", f"{WIDGET_PATH}/a", widget("a", size=5)),
    Ask("GET", f"{WIDGET_PATH}/nobody"),
    Ask("GET", f"{WIDGET_PATH}?fieldSelector=spec.size%3D1"),
    Ask("POST", WIDGET_PATH, {**widget("c"), "apiVersion": "v1"}, copied=False),
    Ask("DELETE", f"{WIDGET_PATH}/a"),
    Ask("DELETE", WIDGET_PATH),
]
