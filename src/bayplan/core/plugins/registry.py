"""The plugins that exist: ours, by kube-scheduler's names, and other people's by entry point."""

from importlib.metadata import entry_points

from bayplan.core.plugins.devices import Devices
from bayplan.core.plugins.dynamic_resources import DynamicResources
from bayplan.core.plugins.gates import SchedulingGates
from bayplan.core.plugins.images import ImageLocality
from bayplan.core.plugins.kubelet import NodeAccepts
from bayplan.core.plugins.node_affinity import NodeAffinity
from bayplan.core.plugins.node_name import NodeName, NodeReadable, NodeUnschedulable
from bayplan.core.plugins.numa import NodeResourceTopologyMatch
from bayplan.core.plugins.order import NamespaceShare, PrioritySort
from bayplan.core.plugins.partitions import Partitions
from bayplan.core.plugins.pod_affinity import InterPodAffinity
from bayplan.core.plugins.ports import NodePorts
from bayplan.core.plugins.preemption import DefaultPreemption
from bayplan.core.plugins.resources import NodeResourcesBalancedAllocation, NodeResourcesFit
from bayplan.core.plugins.spread import PodTopologySpread
from bayplan.core.plugins.taints import TaintToleration
from bayplan.core.plugins.toy import GpuBestFit
from bayplan.core.plugins.utilsched import UtilSched
from bayplan.core.plugins.volumes import VolumeBinding, VolumeRestrictions, VolumeZone

GROUP = "bayplan.plugins"

BUILT_IN: dict[str, type] = {
    plugin.name: plugin
    for plugin in (
        SchedulingGates,
        PrioritySort,
        NamespaceShare,
        NodeReadable,
        NodeUnschedulable,
        NodeName,
        TaintToleration,
        NodeAffinity,
        NodePorts,
        NodeResourcesFit,
        VolumeRestrictions,
        VolumeBinding,
        VolumeZone,
        PodTopologySpread,
        InterPodAffinity,
        DynamicResources,
        Devices,
        Partitions,
        NodeResourceTopologyMatch,
        NodeAccepts,
        NodeResourcesBalancedAllocation,
        ImageLocality,
        GpuBestFit,
        UtilSched,
        DefaultPreemption,
    )
}

# The default profile: per extension point the plugins in kube-scheduler's order, with weights.
DEFAULT: dict[str, tuple[tuple[str, int], ...]] = {
    "admit": (("SchedulingGates", 0),),
    "order": (("PrioritySort", 0),),
    "filter": (
        ("NodeReadable", 0),
        ("NodeUnschedulable", 0),
        ("NodeName", 0),
        ("TaintToleration", 0),
        ("NodeAffinity", 0),
        ("NodePorts", 0),
        ("NodeResourcesFit", 0),
        ("VolumeRestrictions", 0),
        ("VolumeBinding", 0),
        ("VolumeZone", 0),
        ("PodTopologySpread", 0),
        ("InterPodAffinity", 0),
        ("DynamicResources", 0),
        ("Devices", 0),
        ("Partitions", 0),
        ("NodeResourceTopologyMatch", 0),
        ("NodeAccepts", 0),  # last: what else is wrong with the node says more
    ),
    "score": (
        ("TaintToleration", 3),
        ("NodeAffinity", 2),
        ("NodeResourcesFit", 1),
        ("PodTopologySpread", 2),
        ("InterPodAffinity", 2),
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("Devices", 10),  # says nothing of pods that ask for none
        ("Partitions", 10),  # likewise
        ("NodeResourceTopologyMatch", 1),  # nor where no node's zones are published
    ),
    "choose": (("Devices", 0), ("Partitions", 0)),
    "preempt": (("DefaultPreemption", 0),),
}


def installed() -> dict[str, type]:
    """Every plugin by name. A foreign plugin may not take the name of one of ours."""
    found = dict(BUILT_IN)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in found:
            raise ValueError(f"plugin {point.name} of {point.value} has the name of another plugin")
        found[point.name] = point.load()
    return found
