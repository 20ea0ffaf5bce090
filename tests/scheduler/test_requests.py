"""The bodies of what is written."""

import msgspec
import pytest

from bayplan.core.model.pods import Pod, RowKey
from bayplan.scheduler import requests

POD = Pod("uid-p", "team", "p", {}, RowKey(), scheduler="toyscheduler")


def test_an_event_has_every_field_that_the_api_requires() -> None:
    body = msgspec.json.decode(
        requests.event(
            requests.Note(POD, requests.SCHEDULED, "Successfully assigned team/p to n"), "host", 1.5
        )
    )
    assert body["eventTime"] == "1970-01-01T00:00:01.500000Z"
    assert body["reportingController"] == "toyscheduler"
    assert body["reportingInstance"] == "toyscheduler-host"
    assert (body["type"], body["action"], body["reason"]) == ("Normal", "Binding", "Scheduled")
    assert body["metadata"]["name"] == "p.59682f00"
    assert "resourceVersion" not in body["regarding"]


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 900])
def test_a_long_note_is_cut_to_what_the_api_takes(text: str) -> None:
    short = requests.shortened(text)
    assert len(short.encode()) <= 1024
    assert short.endswith(" ...")
    assert text.startswith(short.removesuffix(" ..."))


@pytest.mark.parametrize(
    ("key", "good"),
    [
        ("bayplan.dev/assignment", True),
        ("ids.bayplan.dev/main", True),
        ("plain", True),
        ("Bad.Domain/x", False),
        ("bayplan.dev/", False),
        ("a/b/c", False),
        ("bayplan.dev/has space", False),
        ("bayplan.dev/" + "x" * 64, False),
    ],
)
def test_a_bad_annotation_is_found_before_it_is_written(key: str, good: bool) -> None:
    """The API server takes it with the Binding and then refuses every update of the pod."""
    assert (requests.bad_annotation({key: "v"}) is None) is good


def test_annotations_that_are_too_large_are_found() -> None:
    assert requests.bad_annotation({"a": "x" * (1 << 18)}) is not None
