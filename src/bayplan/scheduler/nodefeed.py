"""Nodes on their way in, with what is known of the use of their devices.

Use changes every half minute and the rest of a node hardly ever, so news of use alone is told as
such. What a Prometheus server says of a device counts more than annotations, until it is too old:
a server that is gone does not hide what a profiler still says. What the node has is only in
annotations.

Everything gets a time here, so that it can grow old: what says none, or one that is still to come,
is as old as the last change of it that we heard of.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.core.model import events as on
from bayplan.core.model.nodes import Node
from bayplan.core.model.utilisation import AGE_S, DeviceUse, NodeUse
from bayplan.kube.clock import Clock
from bayplan.scheduler.feed import NamedSink, Report
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import Kind

Devices = tuple[DeviceUse, ...]


class NodeSink(NamedSink[Node]):
    def __init__(self, inbox: Inbox, report: Report, kind: Kind[Node], clock: Clock) -> None:
        super().__init__(inbox, report, kind)
        self._clock = clock
        self._noted: dict[str, NodeUse] = {}  # by node: as annotations say it
        self._heard: dict[str, dict[DeviceUse, float]] = {}  # by node: of what says no time, when
        self._measured: Mapping[str, Devices] = {}  # by node: by a server

    def measure(self, found: Mapping[str, Devices]) -> None:
        """What a server says of all nodes now."""
        before, self._measured = self._measured, found
        for name in dict.fromkeys((*before, *found)):
            if name in self.known:
                node = self.known[name]
                self._tell(replace(node, use=self._use(name, self._noted.get(name))))

    def _put(self, item: Node) -> None:
        if item.use is not None:
            self._noted[item.name] = item.use
        else:
            self._noted.pop(item.name, None)
            self._heard.pop(item.name, None)
        if item.use is not None or item.name in self._measured:
            item = replace(item, use=self._use(item.name, item.use))
        self._tell(item)

    def _tell(self, node: Node) -> None:
        old = self.known.get(node.name)
        if old == node:
            self.unchanged += 1
            return
        self.known[node.name] = node
        only_use = old is not None and old == replace(node, use=old.use)
        self.inbox.add(on.UseSeen(node.name, node.use) if only_use else self.kind.seen(node))

    def _forget(self, name: str) -> None:
        self._noted.pop(name, None)
        self._heard.pop(name, None)
        super()._forget(name)

    def _use(self, name: str, noted: NodeUse | None) -> NodeUse | None:
        oldest = self._clock.wall() - AGE_S
        measured = [each for each in self._measured.get(name, ()) if each.at_s >= oldest]
        if noted is None and not measured:
            return None
        noted = noted or NodeUse()
        devices = {each.index: each for each in self._timed(name, noted.devices)}
        devices.update((each.index, each) for each in measured)
        return replace(noted, devices=tuple(devices[index] for index in sorted(devices)))

    def _timed(self, name: str, devices: Devices) -> Devices:
        now, before = self._clock.wall(), self._heard.get(name, {})
        heard = {
            device: before.get(device, now)
            for device in devices
            if not 0 < device.at_s <= now + AGE_S
        }
        if heard:
            self._heard[name] = heard
        else:
            self._heard.pop(name, None)
        return tuple(
            replace(device, at_s=heard[device]) if device in heard else device for device in devices
        )
