"""Image locality."""

from collections.abc import Hashable

import numpy as np

from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Facts, Reads, Score
from bayplan.core.state.arrays import Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

MIB = 1024 * 1024
LEAST_BYTES = 23 * MIB  # kube-scheduler's thresholds
MOST_BYTES_PER_CONTAINER = 1000 * MIB


class ImageLocality:
    """Scores nodes that already hold the pod's images, weighed by how many nodes hold them."""

    name = "ImageLocality"
    reads = Reads.STATIC

    def facts(self, ask: Ask, cluster: Cluster) -> Hashable:
        """How far an image has spread counts, so the number of nodes and of holders do."""
        versions = cluster.image_versions
        return (len(cluster.rows), *[versions.get(name, 0) for name in ask.pod.row.images])

    def score(self, ask: Ask, view: View) -> Ints | None:
        cluster = view.cluster
        held = [holders for name in ask.row.images if (holders := cluster.images.get(name))]
        if not held:
            return None
        total = np.zeros(len(cluster.nodes), dtype=np.int64)
        for holders in held:
            rows = np.fromiter(holders.keys(), dtype=np.intp, count=len(holders))
            sizes = np.fromiter(holders.values(), dtype=np.int64, count=len(holders))
            spread = len(holders) / cluster.node_count
            total[rows] += (sizes * spread).astype(np.int64)
        most = MOST_BYTES_PER_CONTAINER * ask.row.containers
        clipped = np.clip(total[view.row_numbers], LEAST_BYTES, most)
        return MAX_SCORE * (clipped - LEAST_BYTES) // (most - LEAST_BYTES)


_: type[Score] = ImageLocality
__: type[Facts] = ImageLocality
