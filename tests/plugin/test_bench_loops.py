"""The loop that the engine's pace is held against computes what the engine does."""

import numpy as np

from bayplan.bench.engine import SameScores, filled
from bayplan.core.engine.questions import asking
from bayplan.core.state.demand import PODS
from bayplan.core.state.view import View

NODES = 300


def test_the_loop_with_the_same_scores_has_the_same_scores() -> None:
    engine, stream, _ = filled(NODES)
    cluster = engine.cluster
    columns = [
        PODS,
        *(cluster.resource_columns[name] for name in ("cpu", "memory", "nvidia.com/gpu")),
    ]
    loop, rows = SameScores(NODES, 1), np.arange(NODES)
    loop.free = cluster.free[:NODES, columns].copy()
    verdicts, feasible = engine.verdicts["bayplan"], 0
    names = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
    scores = [each for _, each in verdicts.profile.scores if each.name in names]
    (fit,) = (each for _, each in verdicts.profile.filters if each.name == names[0])
    for _ in range(100):
        pod = next(stream)
        if len(pod.row.requests) < 3:
            continue
        with asking(verdicts, pod) as ask:
            view = View(cluster)
            refused = fit.refuse(ask, view)
            total = sum(each.score(ask, view) for each in scores)  # type: ignore[misc]
            ours = np.where(np.asarray(refused) != 0, -1, total)
            need = ask.demand.need[columns]
        assert (loop.verdicts(need, rows) == ours).all()
        feasible += int((ours >= 0).sum())
    assert 0 < feasible < 100 * NODES
