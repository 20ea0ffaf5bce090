"""A reader that has read thousands of pods reads the next one as a new reader would."""

from msgspec.json import encode

from bayplan.kube.read import Reader, Unreadable
from tests.oracle.cases import cases


def read(reader: Reader, source: bytes) -> object:
    try:
        return reader.pod(source)
    except Unreadable as error:
        return str(error)


def test_what_is_kept_of_earlier_pods_changes_nothing() -> None:
    """Templates come back bound and unbound, and with and without a kubelet's word on them."""
    shared, seen = Reader(), 0
    for case in cases(20_261_115, 150):
        for pod in (*case["pods"], case["pod"], BAD_PREFERENCE):
            silent = {**pod, "status": {}}
            unbound = {**silent, "spec": {**pod["spec"], "nodeName": ""}}
            elsewhere = {**pod, "spec": {**pod["spec"], "nodeName": "elsewhere"}}
            for one in (pod, silent, elsewhere, unbound, pod):
                source = encode(one)
                assert read(shared, source) == read(Reader(), source)
                seen += 1
    assert seen > 2_000


NO_SUCH_OPERATOR = {"key": "a", "operator": "Near", "values": ["b"]}
PREFERENCE = {"weight": 1, "preference": {"matchExpressions": [NO_SUCH_OPERATOR]}}
AFFINITY = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}}
BAD_PREFERENCE = {  # is overlooked in a bound pod, and refused in another
    "metadata": {"name": "p", "namespace": "team", "uid": "u"},
    "spec": {"nodeName": "n", "containers": [{"name": "c"}], "affinity": AFFINITY},
}
