"""What is odd about devices and those who hold them, in words for whoever runs the cluster."""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from bayplan.core.model.effects import Report
from bayplan.core.model.holdings import unsaid
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.estates import bits, union

MOST = 8  # that are told of one node at a time


def of_node(cluster: Cluster, node: Node) -> Iterator[Report]:
    """Of a node that is new or publishes other devices, and of its pods."""
    for pool in node.pools:
        if pool.unknown:
            yield Report(f"{pool.device_class} devices of node {node.name}: {pool.unknown}")
    if node.pools:
        residents = cluster.residents[cluster.rows[node.name]]
        # By uid: the order of residents is that of the last trial.
        pods = (replace(residents[uid].pod, node=node.name) for uid in sorted(residents))
        yield from islice((doubt for pod in pods for doubt in of_pod(cluster, pod)), MOST)


def of_pod(cluster: Cluster, pod: Pod) -> Iterator[Report]:
    """Of a bound pod, where its node has devices."""
    row = cluster.rows.get(pod.node)
    if row is None or (pod.held is None and not pod.row.devices):
        return
    holding = pod.held or unsaid(pod.row.devices)
    kept = {  # for a pod that this one makes room for, say: nobody has it twice
        (part.device_class, part.id)
        for held in cluster.holds.on(row)
        for part in (held.held.parts if held.held is not None else ())
    }
    for name, table in sorted(cluster.pools.every().items()):
        if name in holding.unknown and table.has_pool(row):
            yield Report(
                f"nobody can say which {name} devices of node {pod.node} pod {pod.key} holds; "
                "none are given there until that is known"
            )
        for part in holding.parts:
            if (name, part.id) in kept or part.device_class != name:
                continue
            if table.is_overdrawn(row, part.id):
                yield Report(
                    f"of {name} device {part.id} of node {pod.node} more is held than there "
                    f"is, by pod {pod.key} and others; it is not given any more"
                )
    for name, line in sorted(cluster.estates.lines.items()):
        others = [
            each
            for each in cluster.estates.holders(line)
            if each.uid != pod.uid and each.uid in cluster.pods
        ]
        twice = line.mask(pod.held) & union(line.mask(each.held) for each in others)
        if twice:
            ids = ", ".join(line.estate.devices[bit.bit_length() - 1].id for bit in bits(twice))
            yield Report(f"{ids} of {name} are held by pod {pod.key} and another")
