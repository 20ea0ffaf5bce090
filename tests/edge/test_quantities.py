"""Amounts as kube-apiserver 1.36 stores them; the second of each pair is what it answered."""

import pytest

from bayplan.local.problems import Problem
from bayplan.local.quantities import canonical, settle

ANSWERS = """
1 1, 1000m 1, 0.5 500m, .5 500m, 1024Mi 1Gi, 1.5Gi 1536Mi, 1000 1k, 1e3 1e3, 12e4 120e3, 1e-3 1e-3,
500Mi 500Mi, 0.5Ki 512, 100m 100m, 0 0, 0Gi 0, 0m 0, 1536Ki 1536Ki, 123456789 123456789,
1.1Ki 1126400m, 0.1 100m, 1500m 1500m, 1E 1E, 64Gi 64Gi, 12e6 12e6, 1000000 1M, 1500 1500, 1Ti 1Ti,
1024Gi 1Ti, 2048 2048, 1023Ki 1023Ki, 100n 1m, 1u 1m, 1.0001 1001m, 0.00000000001 1m, 1e30 1e30,
9223372036854775807 9223372036854775807, 10000000000000000000 10E, 7Ei 7Ei, 1000k 1M, 0.001Ki 1024m,
1e10 10e9, 1000Gi 1000Gi
"""


@pytest.mark.parametrize("pair", ANSWERS.strip().replace("\n", " ").split(", "))
def test_one_way_to_write_each(pair: str) -> None:
    given, stored = pair.split()

    assert canonical(given) == stored
    assert canonical(stored) == stored


def test_every_amount_of_a_pod() -> None:
    pod = {
        "spec": {
            "overhead": {"cpu": 0.25},
            "containers": [{"resources": {"limits": {"cpu": 1, "memory": "2048Mi"}}}],
            "initContainers": [{"resources": {"requests": {"nvidia.com/gpu": "1000m"}}}],
        }
    }
    settle("Pod", pod)

    assert pod["spec"] == {
        "overhead": {"cpu": "250m"},
        "containers": [{"resources": {"limits": {"cpu": "1", "memory": "2Gi"}}}],
        "initContainers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [("much", "quantities must match"), ("1Gk", "unable to parse quantity's suffix")],
)
def test_what_is_no_amount(text: str, why: str) -> None:
    with pytest.raises(Problem, match=why):
        settle("Node", {"status": {"capacity": {"cpu": text}}})
