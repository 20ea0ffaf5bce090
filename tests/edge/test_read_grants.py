"""Elastic jobs and their workers, as the scheduler reads them: places, shapes, and bad ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from bayplan.cli.clusters import load_cluster
from bayplan.core.model.grants import GENERAL, HOROVOD, Confirmed, Grant
from bayplan.core.model.pods import Worker
from bayplan.core.model.vendors import Vendors
from bayplan.kube.grants import grant_of
from bayplan.kube.read import Reader, Unreadable
from tests.edge.test_bad_input import JSON, places, put

Json = dict[str, Any]


def job(scheduler: str = "", **spec: Any) -> Json:
    limits = {"nvidia.com/gpu": 2, "cpu": "1500m"}
    container = {"name": "w", "image": "i", "resources": {"limits": limits}}
    shape = {"containers": [container], **({"schedulerName": scheduler} if scheduler else {})}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": shape}
    return {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": "u",
            "creationTimestamp": "1970-01-01T00:01:00Z",
        },
        "spec": {"template": template, "minWorkers": 2, "maxWorkers": 5, **spec},
        "status": {
            "grant": {"generation": 3, "workers": 2, "passing": 1, "counts": {}},
            "confirmed": {
                "generation": 2,
                "workers": 1,
                "kept": [{"node": "b", "workers": 1}, {"node": "a", "workers": 2}, {"node": 3}, 7],
                "message": "why",
            },
        },
    }


def read(manifest: Any, kind: str = GENERAL) -> Grant:
    return grant_of(kind, Raw(json.dumps(manifest).encode()), Reader(Vendors()))


def test_a_grant_has_the_shape_of_a_worker() -> None:
    grant = read(job())
    assert (grant.key, grant.uid) == ("ElasticJob team/train", "u")
    assert (grant.generation, grant.places, grant.wrong) == (3, 3, "")
    assert grant.confirmed == Confirmed(2, 1, (("a", 2), ("b", 1)), "why")
    assert dict(grant.pod.row.requests) == {"cpu": 1500, "nvidia.com/gpu": 2}
    assert [ask.amount for ask in grant.pod.row.devices] == [2]
    assert (grant.pod.worker, grant.pod.created_s) == (Worker(grant.key), 60.0)
    assert grant.pod.scheduler == "bayplan"
    assert grant.pod.labels["app"] == "x"
    assert grant.pod.gang is not None
    assert grant.pod.gang.minimum == 2


def test_a_worker_is_read_as_its_template_is() -> None:
    """So that a place that is kept for one is a place for the other."""
    manifest = job()
    grant = read(manifest)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    container["resources"] = {"limits": limits, "requests": limits}
    notes = {"bayplan.dev/elastic": "train", "bayplan.dev/gang": "train"}
    notes["bayplan.dev/gang-min"] = "2"
    metadata = {"name": "train-worker-0", "namespace": "team", "annotations": notes}
    spec = {**manifest["spec"]["template"]["spec"], "schedulerName": "bayplan"}
    pod = Reader(Vendors()).pod({"metadata": metadata, "spec": spec})
    assert pod.row.requests == grant.pod.row.requests
    assert pod.row.devices == grant.pod.row.devices
    assert (pod.worker, pod.gang) == (Worker(grant.key), grant.pod.gang)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("train", "ElasticJob team/train"),
        ("elastichorovodjob/train", "ElasticHorovodJob team/train"),
        ("ElasticJob/train", "ElasticJob team/train"),
        ("other/train", "other team/train"),
        ("", ""),
    ],
)
def test_a_worker_names_its_job(text: str, key: str) -> None:
    metadata = {"name": "w", "namespace": "team", "annotations": {"bayplan.dev/elastic": text}}
    assert Reader().pod({"metadata": metadata, "spec": {}}).worker == (Worker(key) if key else None)


@pytest.mark.parametrize(
    ("version", "kind", "uid"),
    [
        ("bayplan.dev/v1alpha1", "ElasticJob", "u"),
        ("elastic.iml.github.io/v1alpha1", "ElasticJob", ""),
        ("apps/v1", "StatefulSet", ""),
    ],
)
def test_a_worker_says_whose_it_is_where_the_job_itself_is_its_owner(
    version: str, kind: str, uid: str
) -> None:
    owner = {"apiVersion": version, "kind": kind, "name": "train", "uid": "u", "controller": True}
    notes = {"bayplan.dev/elastic": "train"}
    metadata = {"name": "w", "namespace": "team", "annotations": notes, "ownerReferences": [owner]}
    pod = Reader().pod({"metadata": metadata, "spec": {}})
    assert pod.worker == Worker("ElasticJob team/train", uid)


def test_claims_that_come_with_each_worker_are_not_waited_for() -> None:
    manifest = job()
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    manifest["spec"]["template"]["spec"]["volumes"] = [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": claim}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    assert [name.rpartition("/")[2] for name in read(manifest).pod.row.claims] == ["data"]


def test_alnairs_jobs_have_workers_of_one_gpu() -> None:
    workers = {"image": "w", "minReplicas": 2, "maxReplicas": 5}
    launcher = {"image": "l", "pythonCommand": ["train.py"]}
    manifest = job() | {"spec": {"launcherSpec": launcher, "workersSpec": workers}}
    grant = read(manifest, HOROVOD)
    assert grant.wrong == ""
    assert grant.key == "ElasticHorovodJob team/train"
    assert dict(grant.pod.row.requests) == {"nvidia.com/gpu": 1}


def test_what_cannot_be_understood_is_named_and_has_no_place() -> None:
    grant = read(job(template={"spec": {"containers": [{"resources": {"limits": {"cpu": "x"}}}]}}))
    assert grant.wrong.startswith("ElasticJob team/train: ")
    assert "spec" in grant.wrong
    manifest = job()
    manifest["status"]["grant"]["workers"] = 2**40
    assert read(manifest).wrong == "ElasticJob team/train: status.grant: more than 20000 places"


@given(st.sampled_from(places(job("s"))), JSON, st.sampled_from((GENERAL, HOROVOD)))
def test_nothing_in_a_job_is_fatal(path: tuple[Any, ...], value: Any, kind: str) -> None:
    try:
        grant = read(put(job("s"), path, value), kind)
    except Unreadable:
        return
    assert isinstance(grant.pod.scheduler, str)
    assert grant.places >= 0


def test_a_dump_with_jobs_has_their_places_taken(tmp_path: Path) -> None:
    status = {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "pods": "110", "memory": "64Gi"}}
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": status}
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"kind": "List", "items": [{"kind": GENERAL, **job()}, node]}))
    cluster = load_cluster([str(dump)])
    assert cluster.problems == []
    assert list(cluster.engine.cluster.holds.rows.values()) == [0, 0, 0]
