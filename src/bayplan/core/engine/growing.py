"""New nodes of kinds that are there already: which would help a pod."""

from bayplan.core.engine.bounds import label_keys
from bayplan.core.engine.ground import Ground
from bayplan.core.engine.what_if import new_node
from bayplan.core.model.advice import Change, Suggestion
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.model.steps import AddNodes

MOST_KINDS = 16


def nodes(ground: Ground, pod: Pod) -> list[Suggestion]:
    """One more of the smallest kind of node that would do."""
    for like in kinds(ground, pod):
        with ground.cluster.trial():
            row = added(ground, like)
            placed = ground.place(pod) if ground.fits(pod, row) else None
        if placed is not None:
            text = f"add a node like {like.name}"
            change = Change(nodes=AddNodes(like.name))
            return [Suggestion("node", text, placed.node, change)]
    return []


def kinds(ground: Ground, pod: Pod) -> list[Node]:
    """One node of each kind, the smallest first: what they have, and what the pod looks at."""
    keys = tuple(dict.fromkeys(label_keys(pod)))
    estates_of = ground.cluster.estates.lines
    found: dict[object, Node] = {}
    for node in ground.cluster.nodes[: ground.cluster.height]:
        if node is None:
            continue
        labels = tuple(node.labels.get(key) for key in keys)
        pools = tuple((pool.device_class, len(pool.devices)) for pool in node.pools)
        estates = tuple(
            name for name, line in estates_of.items() if ground.cluster.rows[node.name] in line.rows
        )
        kind = (tuple(node.allocatable.items()), node.taints, labels, pools, estates)
        found.setdefault(kind, node)
    asked = [name for name, _ in pod.row.requests]
    scarce = [name for name in asked if name not in ("cpu", "memory", "ephemeral-storage")]

    def size(node: Node) -> tuple[object, ...]:
        amounts = (node.allocatable.get(name, 0) for name in (*scarce, "cpu", "memory"))
        return (*amounts, len(node.taints), node.name)

    large = [node for node in found.values() if _holds(node, pod)]
    return sorted(large, key=size)[:MOST_KINDS]


def _holds(node: Node, pod: Pod) -> bool:
    return all(node.allocatable.get(name, 0) >= amount for name, amount in pod.row.requests)


def added(ground: Ground, like: Node) -> int:
    """The row of a new node. In a trial."""
    cluster, number = ground.cluster, 1
    while (name := f"{like.name}-new-{number}") in cluster.rows or name in cluster.orphans:
        number += 1
    return cluster.add_node(new_node(like, name))
