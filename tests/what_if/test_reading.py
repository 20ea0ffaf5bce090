"""Steps from JSON and YAML: what is understood, and the sentence for what is not."""

from typing import Any

import msgspec
import pytest
import yaml

from bayplan.core.model import steps
from bayplan.core.model.pods import Pod, RowKey
from bayplan.kube.read import Unreadable
from bayplan.kube.steps import BadQuestion, body_of, read_file, read_steps

POD = Pod("u", "default", "x", {}, RowKey())


def pod_of(manifest: dict[str, Any]) -> Pod:
    if "bad" in manifest:
        raise Unreadable("pod x", "spec", "it is bad")
    return POD


def read(*given: Any) -> list[steps.Step]:
    return read_steps(msgspec.json.encode({"steps": given}), pod_of)


def test_every_step_of_the_promise_is_understood() -> None:
    text = """
steps:
- fits: {pod: &pod {spec: {}}}
- fits: {pod: *pod, node: head-1}
- fits: {pod: *pod, without: [prod/b]}
- evict: [prod/b]
- place: {pod: *pod}
- place: {gang: {name: train, minMember: 4, pod: *pod, count: 5}}
- place: {gang: {name: train, pod: *pod, count: 5}}
- nodes: {add: {like: node-1, count: 2}}
- nodes: {remove: [node-3]}
- nodes: {remove: [node-3], add: {like: node-1}}
- preempt: {pod: *pod}
- capacity: {pod: *pod}
- capacity: {pod: *pod, limit: 7}
"""
    expected = [
        steps.Fits(POD),
        steps.Fits(POD, "head-1"),
        steps.Fits(POD, None, ("prod/b",)),
        steps.Evict(("prod/b",)),
        steps.Place(POD),
        steps.PlaceGang("train", POD, 5, 4),
        steps.PlaceGang("train", POD, 5, 5),
        steps.ChangeNodes((), steps.AddNodes("node-1", 2)),
        steps.ChangeNodes(("node-3",)),
        steps.ChangeNodes(("node-3",), steps.AddNodes("node-1")),
        steps.Preempt(POD),
        steps.Capacity(POD, 10_000),
        steps.Capacity(POD, 7),
    ]

    assert read_file(text.encode(), pod_of) == expected
    as_json = msgspec.json.encode(yaml.safe_load(text))
    assert read_file(as_json, pod_of) == expected
    assert read_steps(body_of(text.encode()), pod_of) == expected


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (1, "Expected `object`, got `int`"),
        ({}, "a step has one of fits, evict, place, nodes, preempt, capacity, and this has 0"),
        ({"evict": [], "preempt": {"pod": {}}}, "and this has 2"),
        ({"fit": {}}, "unknown field `fit`"),
        ({"fits": {}}, "fits: Object missing required field `pod`"),
        ({"fits": {"pod": []}}, "fits.pod: Expected `object`, got `array`"),
        ({"fits": {"pod": {"bad": 1}}}, "pod x: spec: it is bad"),
        ({"fits": {"pod": {}, "node": ""}}, "fits.node: Expected `str` of length >= 1"),
        ({"evict": "prod/b"}, "evict: Expected `array`, got `str`"),
        ({"evict": [1]}, "evict[0]: Expected `str`, got `int`"),
        ({"place": {}}, "place: it takes either a pod or a gang"),
        ({"place": {"gang": {"name": "A b", "pod": {}, "count": 1}}}, "place.gang.name: Expected"),
        (
            {"place": {"gang": {"name": "a", "pod": {}, "count": 2, "minMember": 3}}},
            "place.gang: minMember is 3, but there are only 2 pods",
        ),
        ({"place": {"gang": {"name": "a", "pod": {}, "count": 0}}}, "Expected `int` >= 1"),
        ({"nodes": {}}, "nodes: it takes add, remove or both"),
        ({"nodes": {"add": {"like": "a", "count": 10**30}}}, "nodes.add.count: "),
        ({"capacity": {"pod": {}, "limit": 0}}, "capacity.limit: Expected `int` >= 1"),
    ],
)
def test_a_step_that_is_wrong_is_told_and_the_others_are_asked(step: Any, why: str) -> None:
    bad, good = read(step, {"evict": []})

    assert isinstance(bad, steps.Unreadable)
    assert why in bad.why
    assert good == steps.Evict(())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it should be one question, but is none"),
        ("a: 1\n---\nb: 2\n", "it should be one question, but is 2"),
        ("- fits: {}\n", "document 1 is not an object but list"),
        ("steps: 1\n", "steps: Expected `array`, got `int`"),
        ("step: []\n", "unknown field `step`"),
        ("{}", "missing required field `steps`"),
        ("steps: [{", "not valid YAML: "),
        ("steps: [.nan]\n", "Out of range float values"),
        ("steps: " + "[" * 300 + "]" * 300, "nested more than 200 deep"),
    ],
)
def test_what_is_no_question(text: str, why: str) -> None:
    with pytest.raises(BadQuestion) as caught:
        read_file(text.encode(), pod_of)

    assert why in str(caught.value)
