"""Kubernetes JSON in, values out: what kube-scheduler makes of each field."""

import json
from typing import Any

import msgspec
import pytest

from bayplan.core.model.nodes import Image
from bayplan.core.model.pods import AffinityTerm, HostPort, Pod, PodTerms, RowKey, Spread
from bayplan.core.model.selectors import (
    EVERYTHING,
    NodeTerm,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from bayplan.kube.read import Reader, Unreadable

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = Selector((Requirement("app", "In", ("web",)),))


def read(
    spec: Json | None = None,
    status: Json | None = None,
    labels: Json | None = None,
    newcomer: bool = False,
    **metadata: Any,
) -> Pod:
    named = {"name": "p", "namespace": "prod", "labels": labels, **metadata}
    return Reader().pod({"metadata": named, "spec": spec, "status": status}, newcomer)


def required(*terms: Json, **more: Any) -> tuple[NodeTerm, ...] | None:
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}
    return read({"affinity": affinity, **more}).row.required


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(term: Json, kind: str = "podAffinity", node: str = "") -> PodTerms:
    found = read({"affinity": {kind: {REQUIRED: [term]}}, "nodeName": node}).terms
    assert found is not None
    return found


def spread(labels: Json | None = None, **fields: Any) -> Spread:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    found = read({"topologySpreadConstraints": [{**constraint, **fields}]}, labels=labels).terms
    assert found is not None
    return found.spread[0]


# Pods


def test_the_least_pod() -> None:
    pod = Reader().pod(b'{"metadata":{"name":"p"}}')
    row = RowKey(containers=0)
    assert pod == Pod(uid="default/p", namespace="default", name="p", labels={}, row=row)


def test_null_is_as_good_as_absent() -> None:
    nothing = dict.fromkeys(
        (
            *("containers", "initContainers", "volumes", "resources", "overhead", "nodeName"),
            *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priority"),
            *("schedulerName", "schedulingGates", "preemptionPolicy"),
        )
    )
    assert read(nothing, {"phase": None, "conditions": None}, uid=None) == read()


def test_the_plain_fields() -> None:
    pod = read(
        {
            "nodeName": "n1",
            "schedulerName": "bayplan",
            "priority": -5,
            "preemptionPolicy": "Never",
            "schedulingGates": [{"name": "a.b/c"}],
        },
        {"startTime": "1970-01-01T01:00:02+01:00", "nominatedNodeName": "n2"},
        {"app": "web"},
        uid="u",
        creationTimestamp="1970-01-01T00:00:01.5Z",
        deletionTimestamp="2026-01-01T00:00:00Z",
    )
    assert (pod.uid, pod.key, pod.labels) == ("u", "prod/p", {"app": "web"})
    assert (pod.node, pod.scheduler, pod.priority, pod.preempts) == ("n1", "bayplan", -5, False)
    assert (pod.created_s, pod.started_s, pod.nominated) == (1.5, 2.0, "n2")
    assert (pod.gates, pod.terminating) == (("a.b/c",), True)


def test_bytes_raw_json_and_mappings_read_alike() -> None:
    manifest = {"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": 1.5, "memory": 10**30}}}
    data = json.dumps(manifest).encode()
    reader = Reader()
    assert reader.pod(data) == reader.pod(msgspec.Raw(data)) == reader.pod(manifest)


def test_equal_keys_become_one() -> None:
    reader = Reader()
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
    }
    one, other = (reader.pod({"metadata": {"name": n}, "spec": spec}) for n in "ab")
    assert one.row is other.row
    assert one.terms is other.terms is not None


@pytest.mark.parametrize(
    ("phase", "live"), [("Running", True), (None, True), ("Failed", False), ("Succeeded", False)]
)
def test_pods_at_their_end_are_known(phase: str | None, live: bool) -> None:
    pod = {"metadata": {"name": "p"}, "status": {"phase": phase}}
    assert (Reader().live_pod(pod) is not None) is live


def test_a_newcomer_that_names_a_node_insists_on_it() -> None:
    assert read({"nodeName": "n1"}).node == "n1"
    assert read({"nodeName": "n1"}).row.node_name == ""
    newcomer = read({"nodeName": "n1"}, newcomer=True)
    assert (newcomer.node, newcomer.row.node_name) == ("", "n1")


def test_requests_from_every_place() -> None:
    spec = {
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": 0.5, "memory": "1Ki", "x.y/z": 2}}},
            {"name": "b", "resources": {"requests": {"cpu": "250m", "other": "7"}}},
        ],
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}},
            {"name": "i", "resources": {"requests": {"memory": "4Ki"}}},
        ],
        "overhead": {"cpu": "1m"},
    }
    row = read(spec).row
    assert row.requests == (("cpu", 1751), ("memory", 4096), ("x.y/z", 2))
    assert row.containers == 4


def test_a_resize_counts_once_the_pod_is_bound() -> None:
    spec: Json = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}
    status = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": 2}}, "allocatedResources": {"cpu": 3}}
        ]
    }
    assert read(spec, status).row.requests == (("cpu", 1000),)
    bound = {**spec, "nodeName": "n"}
    assert read(bound, status).row.requests == (("cpu", 3000),)
    status["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert read({**bound, "containers": spec["containers"]}, status).row.requests[0][1] == 3000
    status["containerStatuses"][0]["resources"] = None  # the node has not said
    assert read(bound, status).row.requests == (("cpu", 1000),)


def test_a_pod_level_resize() -> None:
    spec = {"nodeName": "n", "resources": {"requests": {"cpu": "1"}}}
    status = {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1500m"}}
    assert read(spec, status).row.requests == (("cpu", 2000),)


def test_host_ports() -> None:
    port = {"hostPort": 80}
    spec = {
        "containers": [
            {"ports": [port, port, {"containerPort": 1}, {"hostPort": 0}, {"hostPort": -1}]},
            {"ports": [{"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}]},
        ],
        "initContainers": [
            {"ports": [{"hostPort": 1}]},
            {"restartPolicy": "Always", "ports": [{"hostPort": 2, "hostIP": "", "protocol": ""}]},
        ],
    }
    assert read(spec).row.ports == (
        HostPort("TCP", 2, "0.0.0.0"),
        HostPort("TCP", 80, "0.0.0.0"),
        HostPort("UDP", 53, "10.0.0.1"),
    )


def test_images_are_named_in_full() -> None:
    spec = {
        "initContainers": [{"image": "a"}],
        "containers": [{"image": "reg:5000/a"}, {"image": "a:1"}, {"image": "a@sha256:0"}, {}],
        "volumes": [{"image": {"reference": "m"}}, {"emptyDir": {}}],
    }
    names = ("a:latest", "reg:5000/a:latest", "a:1", "a@sha256:0", ":latest", "m:latest")
    assert read(spec).row.images == names


def test_tolerations() -> None:
    spec = {"tolerations": [{"key": "k", "value": "v"}, {"operator": "Exists", "effect": "E"}]}
    assert read(spec).row.tolerations == (
        Toleration("k", "Equal", "v", ""),
        Toleration("", "Exists", "", "E"),
    )


# Node affinity


def test_a_node_selector_is_taken_as_it_is() -> None:
    assert read({"nodeSelector": {"z": "1", "a b": "!"}}).row.node_selector == (
        ("a b", "!"),
        ("z", "1"),
    )


def test_required_terms() -> None:
    term = {
        "matchExpressions": [expression("b", "NotIn", "y", "x", "y"), expression("a", "Exists")]
    }
    assert required(term) == (
        NodeTerm((Requirement("a", "Exists"), Requirement("b", "NotIn", ("x", "y")))),
    )
    assert required() == ()
    assert read({"affinity": {"nodeAffinity": {REQUIRED: None}}}).row.required is None


@pytest.mark.parametrize(
    "bad",
    [
        expression("a b", "Exists"),
        expression("", "Exists"),
        expression("a", "In"),
        expression("a", "NotIn"),
        expression("a", "Exists", "x"),
        expression("a", "DoesNotExist", "x"),
        expression("a", "Gt", "1", "2"),
        expression("a", "Gt"),
        expression("a", "Lt", "1.5"),
        expression("a", "In", "no spaces"),
        expression("a", "In", "x" * 64),
        expression("a", "Equals", "x"),
        {"key": "a"},
    ],
)
def test_a_term_that_cannot_be_parsed_matches_nothing(bad: Json) -> None:
    fields = [expression("metadata.name", "In", "n1")]
    good = expression("a", "Exists")
    assert required({"matchExpressions": [good, bad]}) == (NodeTerm(broken=True),)
    assert required({"matchExpressions": [bad], "matchFields": fields}) == (
        NodeTerm(broken=True, named=("n1",)),
    )


def test_an_empty_term_matches_nothing_and_names_no_node() -> None:
    assert required({}, {"matchFields": []}) == (NodeTerm(broken=True), NodeTerm(broken=True))


def test_numbers_are_compared_as_numbers() -> None:
    assert required({"matchExpressions": [expression("a", "Gt", "-5")]}) == (
        NodeTerm(broken=True),  # -5 is a number, but no label value
    )
    assert required({"matchExpressions": [expression("a", "Lt", "05")]}) == (
        NodeTerm((Requirement("a", "Lt", ("05",)),)),
    )


@pytest.mark.parametrize(
    ("fields", "term"),
    [
        ([("metadata.name", "In", "b")], NodeTerm(name_in=("b",), named=("b",))),
        ([("metadata.name", "NotIn", "b")], NodeTerm(name_not_in=("b",))),
        (
            [("metadata.name", "In", "b"), ("metadata.name", "In", "a")],
            NodeTerm(name_in=("a", "b"), named=()),
        ),
        ([("metadata.name", "In", "b", "a")], NodeTerm(broken=True, named=("a", "b"))),
        ([("metadata.name", "In")], NodeTerm(broken=True, named=())),
        ([("metadata.name", "Exists")], NodeTerm(broken=True)),
        ([("other", "In", "x")], NodeTerm(broken=True)),
        ([("other", "NotIn", "x")], NodeTerm()),
    ],
)
def test_conditions_on_the_name(fields: list[tuple[str, ...]], term: NodeTerm) -> None:
    assert required({"matchFields": [expression(*field) for field in fields]}) == (term,)


def test_preferred_terms_that_say_nothing_are_skipped() -> None:
    ssd = {"matchExpressions": [expression("disk", "In", "ssd")]}
    bad = {"matchExpressions": [expression("disk", "In")]}
    preferred: list[Json] = [
        {"weight": 3, "preference": ssd},
        {"weight": 0, "preference": bad},
        {"weight": 1, "preference": {}},
        {"weight": 1},
    ]
    row = read({"affinity": {"nodeAffinity": {PREFERRED: preferred}}}).row
    assert row.preferred == ((3, NodeTerm((Requirement("disk", "In", ("ssd",)),))),)
    assert row.has_preferred
    assert not read({"affinity": {"nodeAffinity": {PREFERRED: None}}}).row.has_preferred
    assert read({"affinity": {"nodeAffinity": {PREFERRED: []}}}).row.has_preferred


@pytest.mark.parametrize(
    "preference",
    [
        {"matchExpressions": [expression("a", "Nope")]},
        {"matchFields": [expression("metadata.name", "Exists")]},
    ],
)
def test_a_broken_preferred_term_is_refused_while_it_matters(preference: Json) -> None:
    spec = {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": preference}]}}}
    with pytest.raises(Unreadable, match=r"pod prod/p: spec\.affinity\.nodeAffinity\.preferred"):
        read(spec)
    assert read({**spec, "nodeName": "n"}).row.preferred == ()


# Terms about other pods


def test_selectors_of_affinity_terms() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    assert affinity(term).affinity == (AffinityTerm(WEB, "zone", ("prod",)),)
    same = {
        "topologyKey": "zone",
        "labelSelector": {"matchExpressions": [expression("app", "In", "web")]},
    }
    assert affinity(same, "podAntiAffinity").anti_affinity == affinity(term).affinity
    assert affinity({"labelSelector": {}}).affinity[0].selector == EVERYTHING
    assert affinity({}).affinity[0].selector is None


@pytest.mark.parametrize(
    ("fields", "names", "selector"),
    [
        ({}, ("prod",), None),
        ({"namespaces": ["b", "a", "b"]}, ("a", "b"), None),
        ({"namespaces": [], "namespaceSelector": {}}, (), EVERYTHING),
        ({"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"app": "web"}}}, ("a",), WEB),
    ],
)
def test_namespaces_of_affinity_terms(
    fields: Json, names: tuple[str, ...], selector: Selector | None
) -> None:
    term = affinity(fields).affinity[0]
    assert (term.namespaces, term.namespace_selector) == (names, selector)


def test_preferred_terms_have_a_sign() -> None:
    near = {"weight": 5, "podAffinityTerm": {"topologyKey": "zone"}}
    spec = {
        "affinity": {"podAffinity": {PREFERRED: [near]}, "podAntiAffinity": {PREFERRED: [near]}}
    }
    terms = read(spec).terms
    assert terms is not None
    assert [weight for weight, _ in terms.preferred] == [5, -5]


def test_no_terms_at_all() -> None:
    assert read({"affinity": {"podAffinity": {REQUIRED: []}, "nodeAffinity": {}}}).terms is None


def test_a_bad_selector_is_refused_but_a_bound_pod_lives_with_it() -> None:
    bad = {"labelSelector": {"matchExpressions": [expression("app", "Gt", "1")]}}
    with pytest.raises(Unreadable) as caught:
        affinity(bad)
    where = f"spec.affinity.podAffinity.{REQUIRED}[0].labelSelector.matchExpressions[0].operator"
    assert (caught.value.what, caught.value.field) == ("pod prod/p", where)
    spec: Json = {"nodeName": "n", "affinity": {"podAffinity": {REQUIRED: [bad]}}}
    assert read(spec).terms is None


def test_spread_defaults() -> None:
    assert spread() == Spread(1, "zone", True, None)
    assert spread(whenUnsatisfiable="ScheduleAnyway", minDomains=3, labelSelector={}) == Spread(
        1, "zone", False, EVERYTHING, 3
    )
    honest = spread(nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")
    assert (honest.honor_affinity, honest.honor_taints) == (False, True)


def test_spread_merges_the_label_keys_that_the_pod_has() -> None:
    keys = {"matchLabelKeys": ["app", "rev", "none"]}
    labels = {"app": "web", "rev": "1"}
    merged = spread(labels, labelSelector={"matchLabels": {"app": "web"}}, **keys).selector
    assert merged == Selector((*WEB.requirements, Requirement("rev", "In", ("1",))))
    assert spread({"app": "web"}, labelSelector={}, **keys).selector == WEB
    assert spread(labels, **keys).selector is None


def test_spread_of_an_unknown_kind_is_passed_over() -> None:
    bad = {"whenUnsatisfiable": "Maybe", "labelSelector": {"matchLabels": {"a b": ""}}}
    assert read({"topologySpreadConstraints": [bad]}).terms is None


# Nodes and namespaces


def test_a_node() -> None:
    node = Reader().node(
        {
            "metadata": {"name": "n", "uid": "u", "labels": {"zone": "z"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
            "status": {
                "allocatable": {"cpu": "1.5", "memory": 10, "pods": "110", "x.y/z": 2, "odd": "1"},
                "images": [{"names": ["a", "b"], "sizeBytes": 7}, {"names": None}],
            },
        }
    )
    assert (node.name, node.uid, node.labels, node.unschedulable) == ("n", "u", {"zone": "z"}, True)
    assert node.allocatable == {"cpu": 1500, "memory": 10, "pods": 110, "x.y/z": 2}
    assert node.taints == (Taint("k", "", "NoSchedule"),)
    assert node.images == (Image(("a", "b"), 7), Image((), 0))


def test_a_node_without_a_status_has_nothing() -> None:
    assert Reader().node(b'{"metadata":{"name":"n"},"spec":null}').allocatable == {}


def test_a_namespace() -> None:
    named = Reader().namespace({"metadata": {"name": "prod", "labels": {"team": "a"}}})
    assert named == ("prod", {"team": "a"})
