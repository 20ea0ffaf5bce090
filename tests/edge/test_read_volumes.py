"""Claims, volumes and classes in, values out; and what a pod and a kubelet say of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.pods import Pod
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.model.volumes import Claim, StorageClass, Volume
from bayplan.kube.manifests import load_dump
from bayplan.kube.read import Reader, Unreadable
from bayplan.kube.refusals import refused_resources
from bayplan.testing.world import pod
from tests.edge.test_bad_input import JSON, gives, places, put

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
CLAIM: Json = {
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "data",
        "namespace": "prod",
        "uid": "u",
        "annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "volume.kubernetes.io/selected-node": "n1",
        },
        "ownerReferences": [{"uid": "set"}, {"uid": "pod", "controller": True}],
    },
    "spec": {"volumeName": "v", "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"]},
    "status": {"phase": "Bound"},
}
VOLUME: Json = {
    "kind": "PersistentVolume",
    "metadata": {"name": "v", "labels": {ZONE: "b__a", "other": "x"}},
    "spec": {
        "storageClassName": "fast",
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {},
                ]
            }
        },
    },
    "status": {"phase": "Available"},
}
CLASS: Json = {
    "kind": "StorageClass",
    "metadata": {"name": "fast"},
    "provisioner": "csi.example",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}, {}],
}
DEVICES: Json = {
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"extendedResourceName": "nvidia.com/gpu"},
}
IN_A = NodeTerm((Requirement("zone", "In", ("a",)),))
BROKEN = NodeTerm(broken=True)


def test_a_claim() -> None:
    assert Reader().claim(CLAIM) == Claim(
        namespace="prod",
        name="data",
        uid="u",
        volume="v",
        completed=True,
        storage_class="fast",
        access_modes=("ReadWriteOncePod",),
        selected_node="n1",
        owner="pod",
    )
    least = Reader().claim(b'{"metadata":{"name":"data"}}')
    assert least == Claim("default", "data", "default/data")
    assert (least.key, least.bound) == ("default/data", False)


def test_a_claim_that_goes_or_has_lost_its_volume() -> None:
    going = put(CLAIM, ("metadata", "deletionTimestamp"), "2026-01-01T00:00:00Z")
    assert Reader().claim(going).deleting
    assert Reader().claim(put(CLAIM, ("status", "phase"), "Lost")).lost


def test_the_old_annotation_is_stronger_than_the_class() -> None:
    notes = {"volume.beta.kubernetes.io/storage-class": ""}
    assert Reader().claim(put(CLAIM, ("metadata", "annotations"), notes)).storage_class == ""
    assert Reader().volume(put(VOLUME, ("metadata", "annotations"), notes)).storage_class == ""


def test_a_volume() -> None:
    found = Reader().volume(VOLUME)

    assert found == Volume("v", (IN_A, BROKEN), ((ZONE, ("a", "b")),), "fast", unclaimed=True)
    assert found.reaches({"zone": "a"})
    assert not found.reaches({})
    assert Volume("v").reaches({})
    assert not Reader().volume(put(VOLUME, ("spec", "claimRef"), {"name": "c"})).unclaimed
    assert not Reader().volume(put(VOLUME, ("status", "phase"), "Released")).unclaimed
    assert Reader().volume(put(VOLUME, ("metadata", "labels"), {ZONE: "a__"})).zones == ()
    assert Reader().volume(put(VOLUME, ("spec", "nodeAffinity"), {"required": {}})).terms == ()


def test_a_storage_class() -> None:
    assert Reader().storage_class(CLASS) == StorageClass(
        "fast", True, "csi.example", (IN_A, BROKEN)
    )
    least = Reader().storage_class({"metadata": {"name": "fast"}})
    assert least == StorageClass("fast")
    assert not least.provisions


def test_a_device_class() -> None:
    assert Reader().device_class(DEVICES) == ("gpu", "nvidia.com/gpu")
    assert Reader().device_class({"metadata": {"name": "gpu"}}) == ("gpu", "")


def test_a_pod_names_its_claims_and_keeps_the_rest_of_its_row_key_shared() -> None:
    reader = Reader()

    def read(name: str, volumes: list[Json]) -> Pod:
        metadata = {"name": name, "namespace": "prod", "uid": f"uid-{name}"}
        spec = {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "volumes": volumes}
        return reader.pod({"metadata": metadata, "spec": spec})

    data = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    plain = read("p", [{"name": "c", "configMap": {}}]).row
    first = read("a", [data]).row
    own = read("b", [{"name": "tmp", "ephemeral": {}}, data]).row

    assert (plain.claims, first.claims) == ((), ("prod/data",))
    assert (own.claims, own.ephemeral) == (("prod/b-tmp", "prod/data"), ("prod/b-tmp",))
    assert (first.claim_owner, own.claim_owner) == ("", "uid-b")
    assert own.plain == plain
    assert own.requests is plain.requests
    assert read("c", [data]).row is first


def test_a_pod_with_resource_claims() -> None:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}
    assert Reader().pod({"metadata": {"name": "p"}, "spec": spec}).row.resource_claims


def test_a_dump_has_them() -> None:
    items = [CLAIM, VOLUME, CLASS, DEVICES]
    dump = load_dump([str({"kind": "List", "items": items})])
    assert [len(x) for x in (dump.claims, dump.volumes, dump.storage_classes)] == [1, 1, 1]
    assert len(dump.device_classes) == 1


@pytest.mark.parametrize(
    ("read", "source", "said"),
    [
        (Reader().claim, put(CLAIM, ("spec", "accessModes"), "all"), "prod/data: spec.accessModes"),
        (Reader().claim, {"spec": {}}, "persistentvolumeclaim: metadata.name: it has no name"),
        (Reader().volume, put(VOLUME, ("spec", "nodeAffinity"), []), "v: spec.nodeAffinity"),
        (Reader().storage_class, put(CLASS, ("provisioner",), 1), "storageclass fast: provisioner"),
        (Reader().device_class, put(DEVICES, ("spec",), 1), "deviceclass gpu: spec"),
    ],
)
def test_the_wrong_field_is_named(read: Any, source: Json, said: str) -> None:
    with pytest.raises(Unreadable) as error:
        read(source)
    assert said in str(error.value)


@given(st.sampled_from((CLAIM, VOLUME, CLASS, DEVICES)), st.data(), JSON)
def test_anything_in_any_place(source: Json, data: st.DataObject, value: Any) -> None:
    changed = put(source, data.draw(st.sampled_from(places(source))), value)
    reader = Reader()
    gives(Claim, lambda: reader.claim(changed))
    gives(Volume, lambda: reader.volume(changed))
    gives(StorageClass, lambda: reader.storage_class(changed))
    gives(tuple, lambda: reader.device_class(changed))


GPU = "nvidia.com/gpu"
NO_DEVICE = (
    f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {GPU}. "
    "Requested: 1, Available: 0, which is unexpected"
)


@pytest.mark.parametrize(
    ("reason", "message", "resources"),
    [
        ("OutOfcpu", "", ("cpu",)),
        ("OutOfpods", "", ("pods",)),
        (f"OutOf{GPU}", "", (GPU,)),
        ("UnexpectedAdmissionError", NO_DEVICE, (GPU,)),
        ("UnexpectedAdmissionError", "not enough cpus available", ("cpu",)),
        ("UnexpectedAdmissionError", "nobody knows", ("a.b/c", GPU)),
        ("NodeAffinity", "", ()),
        ("Evicted", "The node was low on resource: memory.", ()),
        ("OutOf", "", ()),
        ("", "", ()),
    ],
)
def test_what_a_kubelet_was_short_of(reason: str, message: str, resources: tuple[str, ...]) -> None:
    asked = pod("p", gpus=1, cpu=1000, requests={"a.b/c": 1})
    assert refused_resources(reason, message, asked) == resources


def test_a_pod_that_asks_for_no_device() -> None:
    odd = "UnexpectedAdmissionError"
    assert refused_resources(odd, "nobody knows", pod("p", cpu=1)) == ("cpu",)
    assert refused_resources(odd, "nobody knows", pod("p")) == ("pods",)
