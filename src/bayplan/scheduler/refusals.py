"""Pods that we bound and a kubelet refused: an event for the engine, for people, and a number."""

import logging
from collections import Counter, OrderedDict

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.kube.refusals import refused_resources
from bayplan.scheduler.feed import FailedPod
from bayplan.scheduler.inbox import Inbox

log = logging.getLogger("bayplan")

_REMEMBERED = 4096  # pods; a failed pod may change again, and is refused once


class Refusals:
    def __init__(self, engine: Engine, inbox: Inbox) -> None:
        self._engine, self._inbox = engine, inbox
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
            self.counts[pod.node, resource] += 1
        log.warning(
            "the kubelet of %s refused pod %s: %s: %s",
            pod.node,
            pod.key,
            failed.reason,
            failed.message,
        )
        self._inbox.add(on.KubeletRefused(pod.node, resources))
