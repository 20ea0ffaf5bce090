"""`bayplan extender`, put together: the running scheduler without decisions of its own, and a
server that kube-scheduler asks."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client.core import Metric

from bayplan.core.engine.profile import Enabled, PluginConfig, PluginSet, ProfileConfig
from bayplan.extender.binds import Binds
from bayplan.extender.label import Itself, LeaderLabel
from bayplan.extender.preemptor import Preemptor
from bayplan.extender.server import serving
from bayplan.extender.verbs import Answers
from bayplan.kube.client import Client
from bayplan.scheduler import heap
from bayplan.scheduler.config import Configuration, Pool
from bayplan.scheduler.loop import Output
from bayplan.scheduler.metrics import counter, number
from bayplan.scheduler.service import Options, Service
from bayplan.scheduler.steward import Site
from bayplan.scheduler.watches import Watches
from bayplan.web.door import Limits
from bayplan.web.tls import Tls, TlsFiles

log = logging.getLogger("bayplan")


def profile(policy: str) -> ProfileConfig:
    """Devices only, where everybody who holds some can be read: kube-scheduler does the rest. No
    pod is of a scheduler without a name, so nothing is decided here that was not asked for."""
    none, devices = (Enabled("*"),), Enabled("Devices", 1)
    return ProfileConfig(
        "",
        {
            "admit": PluginSet(disabled=none),
            "filter": PluginSet((Enabled("NodeReadable"), devices), none),
            "score": PluginSet((devices,), none),
        },
        (PluginConfig("Devices", {"policy": policy}),),
    )


class Extender(Service):
    HEAP = heap.QUICK

    def __init__(self, config: Configuration, options: Options, client: Client) -> None:
        super().__init__(config, options, client)
        assert isinstance(self.writer, Binds)
        self.loop.is_asked = True
        if config.extender.preemption:
            self.writer.preemptor = Preemptor(self.loop)
        self.answers = Answers(
            self.loop,
            self.writer,
            client,
            self.writer.preemptor,
            lambda: self.loop.leads and self.fence.is_open,
        )
        self.metrics.registry.register(_Counts(self.answers))
        name, namespace = os.environ.get("POD_NAME"), os.environ.get("POD_NAMESPACE")
        if self.elects and name and namespace:
            label = LeaderLabel(client, Itself(namespace, name), self.fence)
            self.loop.turned = label.turn
            self.chores.append(label.run)
        elif self.elects:
            log.warning("POD_NAME and POD_NAMESPACE are not set: no label tells who leads")

    def make_steward(self, reach: Callable[[Pool], Site]) -> None:
        """kube-scheduler binds pods with partitions by itself, or not at all."""

    def choose_profiles(self) -> Sequence[ProfileConfig]:
        return (profile(self.config.extender.policy),)

    def connect(self) -> tuple[Watches, Output]:
        config = self.config
        watches = Watches(
            self.client,
            self.inbox,
            lambda words: log.warning("%s", words),
            self.refusals.on_failed,
            vendors=config.vendors,
            only=("node", "poddisruptionbudget") if config.extender.preemption else ("node",),
        )
        binds = Binds(self.client, self.inbox, self.fence, config.vendors, self.bind_timeout_s)
        return watches, binds

    @asynccontextmanager
    async def doors(self) -> AsyncIterator[None]:
        settings = self.config.extender
        files = settings.tls
        tls = None
        if files.cert_file:
            tls = Tls(TlsFiles(files.cert_file, files.key_file, files.client_ca_file))
        limits = Limits(settings.max_body_size, settings.request_timeout)
        async with super().doors(), serving(f":{settings.port}", self.answers, limits, tls) as port:
            log.info("kube-scheduler is served on port %d%s", port, " with TLS" if tls else "")
            yield


class _Counts:
    """For Prometheus."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counts = dict(self._answers.counts)
        binds = {result: n for (verb, result), n in counts.items() if verb == "bind"}
        yield counter("bayplan_extender_requests", "Answers.", ("verb", "result"), counts)
        yield counter("bayplan_extender_binds", "Answers to binds.", ("result",), binds)
        if self._answers.preemptor is not None:
            looks = dict(self._answers.preemptor.counts)
            words = "Looks for pods that could go for another."
            yield counter("bayplan_extender_preemptions", words, ("result",), looks)
        yield number(
            "bayplan_extender_expected_pods",
            "Pods that were offered devices.",
            self._answers.expected,
        )
