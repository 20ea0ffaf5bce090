"""Which resources a kubelet was short of when it did not admit a pod, as its status tells."""

import re

from bayplan.core.model.numa import unaligned
from bayplan.core.model.pods import Pod

_SHORT = "OutOf"  # and the resource: OutOfcpu, OutOfpods, OutOfnvidia.com/gpu
_UNEXPECTED = "UnexpectedAdmissionError"  # a device plugin's, mostly; the message has the resource
_UNALIGNED = "TopologyAffinityError"
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*[A-Za-z0-9]")


def refused_resources(reason: str, message: str, pod: Pod) -> tuple[str, ...]:
    """The resources, sorted; empty where the kubelet did not refuse the pod for want of any.

    Where the message names none that the pod asks for, it may have been any of its devices, or
    else anything that it asks for; a pod that asks for nothing was one pod too many.
    """
    if reason.startswith(_SHORT):
        return (reason.removeprefix(_SHORT),) if reason != _SHORT else ()
    if reason == _UNALIGNED:
        return (unaligned(pod.row.aligned),)
    if reason != _UNEXPECTED:
        return ()
    asked = [name for name, _ in pod.row.requests]
    words = _NAME.findall(message)
    named = {*words, *(word.removesuffix("s") for word in words)}  # "not enough cpus"
    devices = [name for name in asked if "/" in name]
    return tuple(sorted(named.intersection(asked) or devices or asked or ["pods"]))
