"""Pods that we bound and a kubelet refused: an event for the engine, for people, and a number."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.core.model.numa import without_kind
from bayplan.core.model.pods import Pod
from bayplan.kube.refusals import refused_resources
from bayplan.scheduler.feed import FailedPod
from bayplan.scheduler.inbox import Inbox

log = logging.getLogger("bayplan")

KUBELET_REFUSED = "KubeletRefused"
_REMEMBERED = 4096  # pods; a failed pod may change again, and is refused once


class Refusals:
    """`note` writes an event about a pod."""

    def __init__(self, engine: Engine, inbox: Inbox) -> None:
        self._engine, self._inbox = engine, inbox
        self.note: Callable[[Pod, str, str], None] = lambda pod, reason, text: None
        self._told: OrderedDict[str, None] = OrderedDict()  # uids
        self.counts: Counter[tuple[str, str]] = Counter()  # by node and resource

    def on_failed(self, failed: FailedPod) -> None:
        pod = failed.pod
        if pod.scheduler not in self._engine.profiles or not pod.node or pod.uid in self._told:
            return
        resources = refused_resources(failed.reason, failed.message, pod)
        if not resources:
            return
        self._told[pod.uid] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        for resource in resources:
            self.counts[pod.node, without_kind(resource)] += 1
        text = f"the kubelet of {pod.node} refused the pod: {failed.reason}: {failed.message}"
        log.warning("pod %s: %s", pod.key, text)
        self.note(pod, KUBELET_REFUSED, text)
        self._inbox.add(on.KubeletRefused(pod.node, resources))
