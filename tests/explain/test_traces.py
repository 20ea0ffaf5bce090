"""A question leaves nothing. The laws are looked at after every trial, and here at the end too."""

import random

import pytest

from bayplan.core.engine.advice import Advice
from bayplan.core.model import events as on
from bayplan.core.state.laws import broken, picture
from bayplan.testing import world
from tests.conftest import differences
from tests.explain.clusters import cluster, gang, some_pod, wish


@pytest.mark.parametrize("seed", range(6))
def test_a_question_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    pods = [world.pod("new", **wish(rng)), *gang(some_pod(rng), 3, 3)]
    for pod in pods:
        made.engine.handle(on.PodSeen(pod), 1.0)
    before = picture(made.engine.cluster)
    for pod in (pods[0], pods[-1]):
        Advice(made.engine).explain(pod.key)
        assert list(differences(before, picture(made.engine.cluster))) == []
        assert broken(made.engine.cluster) == []
