"""Affinity, selectors and spread as kube-scheduler understands them."""

from typing import Any

import pytest

from bayplan.core.model.pods import AffinityTerm, Pod, PodTerms, Spread
from bayplan.core.model.selectors import (
    EVERYTHING,
    NodeTerm,
    Requirement,
    Selector,
)
from bayplan.kube.read import Reader, Unreadable

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = Selector((Requirement("app", "In", ("web",)),))


def read(spec: Json, labels: Json | None = None) -> Pod:
    metadata = {"name": "p", "namespace": "prod", "labels": labels}
    return Reader().pod({"metadata": metadata, "spec": spec})


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
