"""What pods need before they are bound: first their volumes, then a partition of devices."""

from bayplan.core.model.effects import Dismantle, Placement
from bayplan.kube.transport import BeforeSend
from bayplan.scheduler.steward import Prepared, Steward
from bayplan.scheduler.volumes import VolumeBinder


class Preparing:
    def __init__(self, volumes: VolumeBinder, steward: Steward | None) -> None:
        self._volumes, self._steward = volumes, steward

    def concerns(self, placement: Placement) -> bool:
        row = placement.pod.row
        return bool(row.claims or row.partitions)

    async def prepare(self, placement: Placement, check: BeforeSend) -> Prepared:
        row = placement.pod.row
        if row.claims:
            await self._volumes.prepare(placement)
        if self._steward is not None and row.partitions:
            return await self._steward.prepare(placement, check)
        return Prepared(placement)

    def dismantle(self, effect: Dismantle) -> None:
        if self._steward is not None:
            self._steward.dismantle(effect)
