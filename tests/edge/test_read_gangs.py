"""Gangs, checkpoints, owners and budgets: annotations and objects in, values out; bad ones too."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.clusters import load_cluster, load_pod
from bayplan.cli.shell import BadInput
from bayplan.core.model.budgets import Budget
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.model.selectors import EVERYTHING, Requirement, Selector
from bayplan.kube.manifests import load_dump
from bayplan.kube.read import Reader, Unreadable
from bayplan.testing import world
from tests.edge.test_bad_input import JSON, gives, places, put

Json = dict[str, Any]
GANG, MIN, NEAR, SAVED = (
    f"bayplan.dev/{n}" for n in ("gang", "gang-min", "gang-near", "checkpoint")
)
TRAIN = {GANG: "train", MIN: "4", NEAR: "rack, topology.kubernetes.io/zone"}


def manifest(notes: Json | None, node: str = "", **metadata: Any) -> Json:
    named = {"name": "p", "namespace": "prod", "annotations": notes, **metadata}
    return {"kind": "Pod", "metadata": named, "spec": {"nodeName": node} if node else {}}


def read(notes: Json | None, node: str = "", **metadata: Any) -> Pod:
    return Reader().pod(manifest(notes, node, **metadata))


# ---- gangs


def test_a_gang_has_a_name_of_its_namespace_a_minimum_and_places_to_be_near() -> None:
    keys = ("rack", "topology.kubernetes.io/zone")
    assert read(TRAIN).gang == Gang("prod/train", 4, keys)
    assert read(TRAIN, node="n").gang == Gang("prod/train", 4, keys)
    assert read({GANG: "train"}).gang == Gang("prod/train", 1)  # none starts without itself
    assert read({GANG: "train", NEAR: ""}).gang == Gang("prod/train", 1)
    assert read({GANG: "train", NEAR: "a,b,a"}).gang == Gang("prod/train", 1, ("a", "b"))
    assert read({"other": "x"}).gang is None
    assert read(None).gang is None


def test_the_members_of_a_gang_share_it() -> None:
    reader = Reader()
    one, other = (reader.pod(manifest(TRAIN)) for _ in range(2))
    assert one.gang is other.gang is not None


BAD = [
    ({GANG: "train", MIN: "two"}, MIN, "'two' is not a whole number from 1 on"),
    ({GANG: "train", MIN: "0"}, MIN, "'0' is not a whole number from 1 on"),
    ({GANG: "train", MIN: "-1"}, MIN, "is not a whole number from 1 on"),
    ({GANG: "train", MIN: "1.5"}, MIN, "is not a whole number from 1 on"),
    ({GANG: "train", MIN: " 2"}, MIN, "is not a whole number from 1 on"),
    ({GANG: "train", MIN: ""}, MIN, "is not a whole number from 1 on"),
    ({GANG: "train", MIN: str(2**31)}, MIN, "is not a whole number from 1 on"),
    ({GANG: "train", MIN: "9" * 5000}, MIN, "...' is not a whole number from 1 on"),
    ({GANG: ""}, GANG, "'' is not a name"),
    ({GANG: "a/b"}, GANG, "'a/b' is not a name"),
    ({GANG: "x" * 254}, GANG, "is not a name"),
    ({MIN: "2"}, GANG, "a gang needs a name, and this pod has only the rest"),
    ({NEAR: "rack"}, GANG, "a gang needs a name, and this pod has only the rest"),
    ({GANG: "train", NEAR: "rack,,zone"}, NEAR, "'' is not a label key"),
    ({GANG: "train", NEAR: "a b"}, NEAR, "'a b' is not a label key"),
    ({GANG: "train", NEAR: ",".join("abcdefghi")}, NEAR, "more than 8 label keys"),
]


@pytest.mark.parametrize(("notes", "key", "why"), BAD)
def test_a_waiting_pod_with_a_bad_gang_is_unreadable_so_that_it_is_not_bound_alone(
    notes: Json, key: str, why: str
) -> None:
    with pytest.raises(Unreadable) as error:
        read(notes)
    said = str(error.value)
    assert said.startswith(f"pod prod/p: metadata.annotations[{key}]: ")
    assert said.endswith(why)
    assert len(said) < 200


@pytest.mark.parametrize(("notes", "key", "why"), BAD)
def test_of_a_bound_pod_only_what_is_bad_is_left_out_and_told_once(
    notes: Json, key: str, why: str
) -> None:
    said: list[str] = []
    reader = Reader(remark=said.append)
    gangs = [reader.pod(manifest(notes, node="n")).gang for _ in range(3)]
    name_is_good = GANG in notes and key != GANG
    assert gangs == [Gang("prod/train", 1) if name_is_good else None] * 3
    (words,) = said
    assert words.startswith(f"pod prod/p: metadata.annotations[{key}]: ")
    assert words.endswith(f"{why}; it is left out")


def test_what_is_good_in_a_bound_pods_gang_stays() -> None:
    assert read({**TRAIN, MIN: "x"}, node="n").gang == Gang(
        "prod/train", 1, ("rack", "topology.kubernetes.io/zone")
    )
    assert read({**TRAIN, NEAR: "x y"}, node="n").gang == Gang("prod/train", 4)


# ---- checkpoints and owners


def test_when_a_pod_last_saved_its_work() -> None:
    assert read({SAVED: "1970-01-01T01:00:02+01:00"}).checkpoint_s == 2.0
    assert read({SAVED: "1970-01-01T00:01:00.5Z"}, node="n").checkpoint_s == 60.5
    assert read({}).checkpoint_s == 0.0


@pytest.mark.parametrize("node", ["", "n"])
@pytest.mark.parametrize("time", ["noon", "", "2026-01-01", "2026-01-01T00:00:00", "1e9"])
def test_a_bad_time_is_told_and_the_pod_is_as_if_it_had_not_saved(time: str, node: str) -> None:
    said: list[str] = []
    pod = Reader(remark=said.append).pod(manifest({SAVED: time}, node))
    assert (pod.checkpoint_s, pod.node) == (0.0, node)
    assert said == [
        f"pod prod/p: metadata.annotations[{SAVED}]: {time!r} is not an RFC 3339 time; "
        "it is left out"
    ]


@pytest.mark.parametrize(
    ("owners", "controlled"),
    [
        (None, False),
        ([], False),
        ([{"uid": "u", "kind": "ReplicaSet"}], False),
        ([{"uid": "u", "controller": False}], False),
        ([{"uid": "u"}, {"uid": "v", "controller": True}], True),
    ],
)
def test_a_pod_with_a_controller_would_be_made_anew(owners: Any, controlled: bool) -> None:
    assert read(None, ownerReferences=owners).controlled is controlled


# ---- budgets

BUDGET: Json = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "prod"},
    "spec": {
        "minAvailable": "50%",
        "selector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "Exists"}],
        },
    },
    "status": {
        "disruptionsAllowed": 1,
        "currentHealthy": 3,
        "disruptedPods": {"web-2": "2026-01-01T00:00:00Z"},
    },
}


def test_a_budget() -> None:
    wanted = (Requirement("app", "In", ("web",)), Requirement("tier", "Exists"))
    selector = Selector(tuple(sorted(wanted)))
    assert Reader().budget(BUDGET) == Budget("prod/web", "prod", selector, 1, frozenset({"web-2"}))
    least = Reader().budget(b'{"metadata":{"name":"b"},"spec":null}')
    assert least == Budget("default/b", "default", None, 0)
    everybody = Reader().budget({"metadata": {"name": "b"}, "spec": {"selector": {}}})
    assert everybody.selector == EVERYTHING


def test_whom_a_budget_covers() -> None:
    budget = Reader().budget(put(BUDGET, ("metadata", "namespace"), "default"))
    labels = {"app": "web", "tier": "1"}
    assert budget.covers(world.pod("web-1", labels=labels))
    assert not budget.covers(world.pod("web-2", labels=labels))  # counted already
    assert not budget.covers(world.pod("web-1", labels={"app": "web"}))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "selector"), 1, "poddisruptionbudget prod/web: spec.selector"),
        (("status", "disruptionsAllowed"), "2", "prod/web: status.disruptionsAllowed"),
        (
            ("spec", "selector", "matchExpressions", 0, "operator"),
            "Near",
            "prod/web: spec.selector.matchExpressions[0].operator: 'Near' is not an operator here",
        ),
    ],
)
def test_the_wrong_field_of_a_budget_is_named(path: Any, value: Any, said: str) -> None:
    with pytest.raises(Unreadable) as error:
        Reader().budget(put(BUDGET, path, value))
    assert said in str(error.value)


@given(st.sampled_from(places(BUDGET)), JSON)
def test_a_budget_with_anything_in_any_place(path: tuple[Any, ...], value: Any) -> None:
    gives(Budget, lambda: Reader().budget(put(BUDGET, path, value)))


@given(st.dictionaries(st.sampled_from((GANG, MIN, NEAR, SAVED)), st.text()), st.booleans())
def test_a_pod_with_any_words(notes: dict[str, str], bound: bool) -> None:
    said: list[str] = []
    reader = Reader(remark=said.append)
    if bound:
        assert reader.pod(manifest(notes, "n")).node == "n"
    else:
        gives(Pod, lambda: reader.pod(manifest(notes)))


# ---- files


def test_a_dump_has_budgets_and_what_is_bad_in_it_is_told(tmp_path: Path) -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9"}}}
    member = manifest({GANG: "train", MIN: "x"}, "n")
    odd = {"kind": "PodDisruptionBudget", "metadata": {"name": "odd"}, "spec": 1}
    text = json.dumps({"kind": "List", "items": [node, member, BUDGET, odd]})
    assert len(load_dump([text]).budgets) == 2
    (tmp_path / "dump.json").write_text(text)
    loaded = load_cluster([str(tmp_path / "dump.json")])
    assert set(loaded.engine.cluster.budgets.by_key) == {"prod/web"}
    assert len(loaded.engine.cluster.pods) == 1  # its node stays open
    budget, gang = loaded.problems
    assert "poddisruptionbudget odd: spec" in budget
    assert f"pod prod/p: metadata.annotations[{MIN}]: 'x'" in gang
    template = {"kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    for minimum in ("2", "two"):
        notes = {GANG: "train", MIN: minimum}
        template["spec"] = {"template": {"metadata": {"annotations": notes}, "spec": {}}}
        (tmp_path / f"{minimum}.yaml").write_text(json.dumps(template))
    assert load_pod(str(tmp_path / "2.yaml"), loaded).gang == Gang("default/train", 2)
    with pytest.raises(BadInput, match="'two' is not a whole number"):
        load_pod(str(tmp_path / "two.yaml"), loaded)
