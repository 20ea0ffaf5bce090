"""Objects in, values out: both kinds, and what is odd in them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.kube.elastic import GENERAL, HOROVOD, Confirmed, Grant, Job, read_job, worker_template
from bayplan.kube.read import Unreadable
from tests.elastic.stage import GPU, elastic, horovod, template

Json = dict[str, Any]


def general(**changes: Any) -> Json:
    job = elastic("train", 2, 5)
    job["spec"].update(changes)
    return job


def test_a_worker_names_its_job_and_is_of_a_gang_of_the_least_number() -> None:
    made = worker_template(GENERAL, general())
    assert made["metadata"]["annotations"] == {
        "bayplan.dev/elastic": "train",
        "bayplan.dev/gang": "train",
        "bayplan.dev/gang-min": "2",
    }
    assert made["spec"]["schedulerName"] == "bayplan"


def test_a_template_with_a_gang_or_a_scheduler_of_its_own_keeps_them() -> None:
    own = template()
    own["metadata"] = {"labels": {"scheduling.x-k8s.io/pod-group": "mine"}}
    own["spec"]["schedulerName"] = "other"
    made = worker_template(GENERAL, general(template=own))
    assert made["metadata"]["annotations"] == {"bayplan.dev/elastic": "train"}
    assert made["spec"]["schedulerName"] == "other"


def test_a_template_is_not_changed_by_reading_it() -> None:
    job = general(launcher=template(0))
    before = msgspec.json.encode(job)
    read_job(GENERAL, job)
    assert msgspec.json.encode(job) == before


def test_a_horovod_worker_has_one_gpu_and_the_scheduler_that_its_job_names() -> None:
    job = horovod("sample", 2, 5, target=3)
    job["metadata"]["annotations"] = {"bayplan.dev/scheduler-name": "other"}
    read = read_job(HOROVOD, job)
    assert (read.minimum, read.maximum, read.fixed, read.counted) == (2, 5, 3, (GPU, 1))
    assert read.template["spec"]["schedulerName"] == "other"
    assert read.template["metadata"]["annotations"]["bayplan.dev/elastic"] == (
        "elastichorovodjob/sample"
    )


def test_accelerators_are_counted_before_other_devices() -> None:
    asked = (("aliyun.com/rdma", 1), ("cpu", 4000), (GPU, 2))
    assert Job(GENERAL, "default", "a", requests=asked).counted == (GPU, 2)
    assert Job(GENERAL, "default", "a", requests=asked[:2]).counted == ("aliyun.com/rdma", 1)


def test_devices_are_counted_before_cpu() -> None:
    own = template(2)
    own["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "4"
    assert read_job(GENERAL, general(template=own)).counted == (GPU, 2)


def test_a_grant_is_read_number_by_number() -> None:
    job = general()
    job["status"] = {
        "grant": {"generation": 7, "workers": "four", "passing": -1, "counts": 3},
        "confirmed": {"generation": True, "workers": 2, "message": 5},
    }
    read = read_job(GENERAL, job)
    assert (read.grant, read.confirmed) == (Grant(7), Confirmed(0, 2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minWorkers": 0}, "spec.minWorkers: 0 is not a whole number from 1 to 10000"),
        ({"minWorkers": None}, "spec.minWorkers: it is missing"),
        ({"maxWorkers": 1}, "spec.maxWorkers: 1 is not a whole number from 2 to 10000"),
        ({"maxWorkers": "5"}, "spec.maxWorkers: Expected `int | null`, got `str`"),
        ({"maxWorkers": 2**70}, "spec.maxWorkers: "),
        ({"template": []}, "spec.template: Expected `object | null`, got `array`"),
        ({"template": {"spec": 3}}, "spec.template.spec: it should be an object"),
        ({"template": {"metadata": {"labels": {"a": 1}}}}, "spec.template.spec.containers: "),
        ({"launcher": {}}, "spec.launcher.spec.containers: there are none"),
        ({"backoffLimit": -1}, "spec.backoffLimit: -1 is not a whole number from 0 to 10000"),
        ({"throughput": {"parallel": 2}}, "spec.throughput.parallel: 2.0 is not from 0 to 1"),
        ({"throughput": {"parallel": float("nan")}}, "spec.throughput.parallel: nan is not"),
        ({"throughput": {"curve": {"none": 1.0}}}, "spec.throughput.curve[none]: the key is not"),
        ({"throughput": {"curve": {"000000001999": 1.0}}}, "spec.throughput.curve[000000001999]: "),
        ({"throughput": {"curve": {"1" + "0" * 5000: 1.0}}}, "spec.throughput.curve[1000000000"),
        ({"throughput": {"curve": {"1": -1.0}}}, "spec.throughput.curve[1]: -1.0 is not"),
        ({"throughput": {"curve": {"1": 0.0}}}, "spec.throughput.curve: no point is above 0"),
        ({"throughput": {"curve": {"1": 1e300}}}, "spec.throughput.curve[1]: "),
        ({"suspend": "yes"}, "spec.suspend: Expected `bool | null`, got `str`"),
    ],
)
def test_what_is_odd_is_said_with_its_field(changes: Json, words: str) -> None:
    read = read_job(GENERAL, general(**changes))
    assert read.wrong.startswith(f"ElasticJob default/train: {words}")


def test_a_name_that_is_too_long_for_its_pods_is_said() -> None:
    job = horovod("x" * 27, 1, 2)
    assert read_job(HOROVOD, job).wrong.endswith("metadata.name: longer than 26 characters")


def test_a_template_that_is_none_is_refused_to_the_scheduler_too() -> None:
    with pytest.raises(Unreadable, match=r"ElasticJob default/train: spec.template"):
        worker_template(GENERAL, general(template=7))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    field=st.sampled_from(
        ("minWorkers", "maxWorkers", "template", "launcher", "throughput", "backoffLimit")
    ),
    value=JSON,
    status=JSON,
    kind=st.sampled_from((GENERAL, HOROVOD)),
)
def test_nothing_in_an_object_ends_the_reader(
    field: str, value: Any, status: Any, kind: str
) -> None:
    job = general(**{field: value}) if kind == GENERAL else horovod("train", 1, 2)
    job["spec"]["workersSpec" if kind == HOROVOD else field] = value
    job["status"] = status
    assert read_job(kind, job).name == "train"
