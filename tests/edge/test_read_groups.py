"""PodGroups, and pods that name them: objects and labels in, values out; bad ones too."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.clusters import load_cluster
from bayplan.core.model.groups import SOURCES, PodGroup, Source
from bayplan.core.model.pods import Gang, Pod
from bayplan.kube.manifests import load_dump
from bayplan.kube.read import Reader, Unreadable
from tests.edge.test_bad_input import JSON, gives, places, put

Json = dict[str, Any]
LABEL, OLD = "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"
FIELD = "spec.schedulingGroup.podGroupName"
NOTE = "bayplan.dev/gang"
NEAR, WITHIN, SPREAD, ACROSS = (f"{NOTE}-{n}" for n in ("near", "within", "spread", "across"))
RUN = "bayplan.dev/run-seconds"


def member(labels: Json | None = None, field: Any = None, node: str = "", **notes: str) -> Json:
    spec: Json = {"nodeName": node} if node else {}
    if field is not None:
        spec["schedulingGroup"] = {"podGroupName": field}
    notes = {f"bayplan.dev/{name.replace('_', '-')}": text for name, text in notes.items()}
    metadata = {"name": "p", "namespace": "prod", "labels": labels, "annotations": notes}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def read(*args: Any, **more: Any) -> Pod:
    return Reader().pod(member(*args, **more))


def crd(spec: Any, source: str = SOURCES[0], status: Any = None, **notes: str) -> Json:
    notes = {f"bayplan.dev/gang-{name}": text for name, text in notes.items()}
    return {
        "apiVersion": f"{source}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "prod", "annotations": notes},
        "spec": spec,
        "status": status,
    }


def group(spec: Any, source: Source = SOURCES[0], **more: Any) -> PodGroup:
    return Reader().pod_group(crd(spec, source, **more), source)


def built_in(spec: Any, **more: Any) -> PodGroup:
    return group(spec, "scheduling.k8s.io", **more)


# ---- pods that name a group


@pytest.mark.parametrize("node", ["", "n"])
def test_a_pod_names_its_group_by_a_label_or_by_a_field(node: str) -> None:
    by_label = Gang("PodGroup prod/g", grouped=True)
    assert read({LABEL: "g"}, node=node).gang == by_label
    assert read({OLD: "g"}, node=node).gang == by_label
    assert read({LABEL: "g", OLD: "g"}, node=node).gang == by_label
    by_field = Gang("PodGroup.scheduling.k8s.io prod/g", grouped=True)
    assert read(field="g", node=node).gang == by_field


def test_an_empty_name_is_none() -> None:
    assert read({LABEL: "", OLD: ""}, field="").gang is None
    assert read({LABEL: ""}, gang="train").gang == Gang("prod/train")
    assert read({LABEL: "", OLD: "g"}).gang == Gang("PodGroup prod/g", grouped=True)


def test_the_members_of_a_group_share_its_gang() -> None:
    reader = Reader()
    one, other = (reader.pod(member({LABEL: "g"})) for _ in range(2))
    assert one.gang is other.gang is not None


TWO: list[tuple[Json, str, str]] = [
    ({"labels": {LABEL: "a", OLD: "b"}}, f"metadata.labels[{OLD}]", f"metadata.labels[{LABEL}]"),
    ({"labels": {LABEL: "b"}, "field": "a"}, f"metadata.labels[{LABEL}]", FIELD),
    ({"labels": {LABEL: "a"}, "field": "a"}, f"metadata.labels[{LABEL}]", FIELD),
    ({"labels": {OLD: "a"}, "field": "a"}, f"metadata.labels[{OLD}]", FIELD),
    (
        {"labels": {LABEL: "a"}, "gang": "a"},
        f"metadata.annotations[{NOTE}]",
        f"metadata.labels[{LABEL}]",
    ),
    ({"field": "a", "gang": "b"}, f"metadata.annotations[{NOTE}]", FIELD),
]


@pytest.mark.parametrize(("pod", "field", "other"), TWO)
def test_a_waiting_pod_that_names_two_gangs_is_unreadable_and_both_fields_are_named(
    pod: Json, field: str, other: str
) -> None:
    with pytest.raises(Unreadable) as error:
        read(**pod)
    said = str(error.value)
    assert said.startswith(f"pod prod/p: {field}: it names ")
    assert f", but {other} names " in said
    assert said.endswith(": a pod is a member of one gang")


@pytest.mark.parametrize(("pod", "field", "other"), TWO)
def test_of_a_bound_pod_that_names_two_gangs_the_first_counts(
    pod: Json, field: str, other: str
) -> None:
    said: list[str] = []
    found = Reader(remark=said.append).pod(member(node="n", **pod)).gang
    assert found is not None
    assert (found.key.endswith("/a"), found.grouped) == (True, True)
    assert found.key.startswith("PodGroup.scheduling.k8s.io ") == (other == FIELD)
    assert len(said) == 1
    assert field in said[0]


def test_a_label_is_not_trusted_to_be_a_name() -> None:
    for odd in ("a b", "a/b", "-", "x" * 300, "é"):
        with pytest.raises(Unreadable, match="is not a name"):
            read({LABEL: odd})
        assert read({LABEL: odd}, node="n").gang is None


def test_what_a_member_says_beside_the_name_of_its_group_is_left_out_and_told_once() -> None:
    said: list[str] = []
    reader = Reader(remark=said.append)
    for name in ("one", "two"):
        pod = member({LABEL: "g"}, gang_min="no number", gang_within="rack")
        pod["metadata"]["name"] = name
        assert reader.pod(pod).gang == Gang("PodGroup prod/g", grouped=True)
    at = "pods of PodGroup prod/g: metadata.annotations"
    why = "the PodGroup says what the gang is; it is left out"
    assert said == [f"{at}[bayplan.dev/gang-min]: {why}", f"{at}[{WITHIN}]: {why}"]


# ---- domains, and how long a pod runs


def test_a_gang_may_need_one_domain_or_several() -> None:
    notes = {"gang": "g", "gang_within": "zone", "gang_spread": "rack", "gang_across": " rack "}
    found = read(**notes).gang
    assert found == Gang("prod/g", 1, (), within="zone", spread="rack", across="rack")
    assert read(gang="g", gang_within="", gang_across="").gang == Gang("prod/g")


@pytest.mark.parametrize("key", [WITHIN, SPREAD, ACROSS])
def test_a_domain_is_one_label_key(key: str) -> None:
    name = key.removeprefix("bayplan.dev/").replace("-", "_")
    with pytest.raises(Unreadable) as error:
        read(gang="g", **{name: "a,b"})
    said = f"pod prod/p: metadata.annotations[{key}]: 'a,b' is not a label key"
    assert str(error.value) == said
    bound = read(node="n", gang="g", gang_min="2", **{name: "a,b"}).gang
    assert bound == Gang("prod/g", 2)


def test_one_domain_cannot_be_several() -> None:
    with pytest.raises(Unreadable, match=r"across\]: 'zone' is the key of .*within\] too"):
        read(gang="g", gang_within="zone", gang_across="zone")


def test_how_long_a_pod_runs_at_most() -> None:
    def run_s(deadline: Any, note: str | None) -> float:
        pod = member() if note is None else member(run_seconds=note)
        pod["spec"]["activeDeadlineSeconds"] = deadline
        return Reader().pod(pod).run_s

    assert run_s(None, None) == 0.0
    assert run_s(60, None) == 60.0
    assert run_s(None, "1.5") == 1.5
    assert run_s(60, "30") == 30.0
    assert run_s(60, "90") == 60.0
    assert run_s(60, "0") == 60.0
    assert run_s(-1, "9") == 9.0


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "1e99", "1m"])
def test_a_length_that_makes_no_sense_is_told_and_left_out(text: str) -> None:
    said: list[str] = []
    pod = member(run_seconds=text)
    pod["spec"]["activeDeadlineSeconds"] = 60
    assert Reader(remark=said.append).pod(pod).run_s == 60.0
    at = f"pod prod/p: metadata.annotations[{RUN}]"
    assert said == [f"{at}: {text!r} is not a number of seconds; it is left out"]


# ---- PodGroups


@pytest.mark.parametrize("source", SOURCES[:2])
def test_a_group_of_a_custom_resource(source: Source) -> None:
    spec = {
        "minMember": 3,
        "minResources": {"cpu": "1500m", "memory": 1024, "nvidia.com/gpu": "0", "odd": "1"},
        "scheduleTimeoutSeconds": 10,
    }
    found = group(spec, source, status={"succeeded": 2, "phase": "Running"}, near="rack,zone")
    gang = Gang("PodGroup prod/g", 3, ("rack", "zone"), timeout_s=10.0, grouped=True)
    assert found == PodGroup(source, gang, (("cpu", 1500), ("memory", 1024)), ended=2)


def test_a_group_of_the_apis_own() -> None:
    key = "PodGroup.scheduling.k8s.io prod/g"
    gang = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    assert built_in(gang).gang == Gang(key, 4, grouped=True)
    assert built_in({"schedulingPolicy": {"basic": {}}}).gang == Gang(key, 1, grouped=True)
    rack = {**gang, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    assert built_in(rack).gang == Gang(key, 4, within="rack", grouped=True)
    assert built_in(rack, within="rack", across="host").wrong == ""
    noted = built_in(gang, within="zone", spread="host").gang
    assert noted == Gang(key, 4, within="zone", spread="host", grouped=True)
    assert built_in(gang, status={"succeeded": 4}).ended == 0  # not a field of it


WRONG: list[tuple[Any, str]] = [
    (None, "spec.minMember: it is missing, so nobody knows how many members there must be"),
    ({"minMember": None}, "spec.minMember: it is missing"),
    ({"minMember": 0}, "spec.minMember: 0 is not a whole number from 1 to 2147483647"),
    ({"minMember": -1}, "spec.minMember: -1 is not a whole number"),
    ({"minMember": 2**31}, "spec.minMember: 2147483648 is not a whole number"),
    ({"minMember": 10**40}, "spec.minMember: "),
    ({"minMember": "3"}, "spec.minMember: Expected `int | null`, got `str`"),
    ({"minMember": 1.5}, "spec.minMember: Expected `int | null`"),
    ({"minMember": True}, "spec.minMember: Expected `int | null`"),
    ("x", "spec: Expected `object`, got `str`"),
    ([], "spec: Expected `object`, got `array`"),
    (
        {"minMember": 1, "scheduleTimeoutSeconds": -5},
        "spec.scheduleTimeoutSeconds: -5 is not a number of seconds",
    ),
    ({"minMember": 1, "minResources": 5}, "spec.minResources: "),
    (
        {"minMember": 1, "minResources": {"cpu": "much"}},
        "spec.minResources[cpu]: 'much' is not a quantity",
    ),
    ({"minMember": 1, "minResources": {"cpu": "-1"}}, "spec.minResources[cpu]: it is negative"),
]


@pytest.mark.parametrize(("spec", "why"), WRONG)
def test_what_is_wrong_with_a_group_is_kept_with_it(spec: Any, why: str) -> None:
    found = group(spec)
    assert found.gang == Gang("PodGroup prod/g", grouped=True)
    assert found.wrong.startswith(f"PodGroup prod/g: {why}")
    assert len(found.wrong) < 300


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (None, "spec.schedulingPolicy: it should be one of basic and gang"),
        ({"schedulingPolicy": {}}, "spec.schedulingPolicy: it should be one of"),
        ({"schedulingPolicy": {"basic": {}, "gang": {}}}, "spec.schedulingPolicy: it should be"),
        ({"schedulingPolicy": {"gang": {}}}, "spec.schedulingPolicy.gang.minCount: it is missing"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "spec.schedulingPolicy.gang.minCount: 0"),
    ],
)
def test_the_same_of_the_apis_own(spec: Any, why: str) -> None:
    assert built_in(spec).wrong.startswith(f"PodGroup.scheduling.k8s.io prod/g: {why}")


def test_domains_that_a_group_asks_for_are_checked() -> None:
    def wrong(*keys: str, **notes: str) -> str:
        topology = [{"key": key} for key in keys]
        basic: Json = {"schedulingPolicy": {"basic": {}}}
        return built_in(
            {**basic, "schedulingConstraints": {"topology": topology}}, **notes
        ).wrong.partition(" prod/g: spec.schedulingConstraints.topology")[2]

    assert wrong("a", "b") == ": more than one constraint"
    assert wrong("a b") == "[0].key: 'a b' is not a label key"
    assert wrong("") == "[0].key: '' is not a label key"
    assert "but the annotation bayplan.dev/gang-within for another" in wrong("a", within="b")
    odd = group({"minMember": 1}, across="a b").wrong
    assert odd == "PodGroup prod/g: metadata.annotations[bayplan.dev/gang-across]: " + (
        "'a b' is not a label key"
    )


@pytest.mark.parametrize("succeeded", [-1, 2**31, "3", 1.5, True, None, [], {}])
def test_a_status_that_makes_no_sense_counts_for_nothing(succeeded: Any) -> None:
    found = group({"minMember": 3}, status={"succeeded": succeeded})
    assert (found.ended, found.wrong) == (0, "")
    assert group({"minMember": 3}, status=succeeded).ended == 0


def test_a_group_without_a_name_is_unreadable() -> None:
    with pytest.raises(Unreadable, match=r"podgroup: metadata\.name: it has no name"):
        Reader().pod_group({"spec": {"minMember": 1}}, SOURCES[0])


WHOLE = crd({"minMember": 3, "minResources": {"cpu": 1}, "scheduleTimeoutSeconds": 1}, near="rack")
OWN = crd(
    {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    },
    "scheduling.k8s.io",
    status={"conditions": []},
)


@given(
    st.sampled_from(SOURCES),
    st.sampled_from([(whole, path) for whole in (WHOLE, OWN) for path in places(whole)]),
    JSON,
)
def test_a_group_with_anything_in_any_place(
    source: Source, where: tuple[Json, tuple[Any, ...]], value: Any
) -> None:
    whole, path = where
    made = put(whole, path, value)
    gives(PodGroup, lambda: Reader().pod_group(made, source))
    gives(object, lambda: Reader().any_pod_group(made))


@given(
    st.dictionaries(st.sampled_from((LABEL, OLD)), st.text()),
    st.none() | st.text(),
    st.dictionaries(
        st.sampled_from(("gang", "gang_min", "gang_within", "gang_across", "run_seconds")),
        st.text(),
    ),
    st.booleans(),
)
def test_a_pod_with_any_words(
    labels: dict[str, str], field: str | None, notes: dict[str, str], bound: bool
) -> None:
    reader = Reader(remark=lambda words: None)
    if bound:
        assert reader.pod(member(labels, field, "n", **notes)).node == "n"
    else:
        gives(Pod, lambda: reader.pod(member(labels, field, **notes)))


# ---- files


def test_a_dump_has_groups_of_three_kinds_and_passes_over_others(tmp_path: Path) -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9"}}}
    theirs = {**WHOLE, "apiVersion": "scheduling.volcano.sh/v1beta1"}
    nobodys = {key: value for key, value in WHOLE.items() if key != "apiVersion"}
    older = crd({"minMember": 0}, "scheduling.sigs.k8s.io")
    text = json.dumps({"kind": "List", "items": [node, WHOLE, older, OWN, theirs, nobodys]})
    assert len(load_dump([text]).pod_groups) == 5
    (tmp_path / "dump.json").write_text(text)
    loaded = load_cluster([str(tmp_path / "dump.json")])
    kept = loaded.engine.cluster.groups.by_source
    assert {source for source, _ in kept} == set(SOURCES)
    assert kept["scheduling.k8s.io", "PodGroup.scheduling.k8s.io prod/g"].gang.minimum == 4
    assert "spec.minMember: 0 is" in kept["scheduling.sigs.k8s.io", "PodGroup prod/g"].wrong
    (problem,) = loaded.problems
    assert problem.endswith("podgroup prod/g: apiVersion: it is missing")
