"""Estates in a snapshot: what controllers told, and what is not settled about partitions."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.keeper import Keeper
from bayplan.core.model import events as on
from bayplan.core.model.partitions import Estate


class Told(Struct, omit_defaults=True):
    """What is known of devices behind a controller."""

    estate: Estate
    strays: dict[str, str] = {}  # partitions that nobody here counts for: their devices, in hex
    refused: int = 0
    refused_at: float | None = None
    closed: str = ""


class Unsettled(Struct, omit_defaults=True):
    """What the keeper remembers."""

    made: list[str] = []  # uids of assumed pods whose partition is made
    unowned: list[tuple[str, str, float]] = []  # estate, partition without a pod, since when
    bereft: list[tuple[str, float]] = []  # uid of a pod without its partition, since when

    @classmethod
    def of(cls, keeper: Keeper) -> "Unsettled":
        unowned = [(*key, since) for key, since in keeper.unowned.items()]
        return cls(sorted(keeper.made), unowned, list(keeper.bereft.items()))


def told(engine: Engine) -> Iterator[Told]:
    for name, line in engine.cluster.estates.lines.items():
        strays = {id: f"{mask:x}" for id, mask in line.strays.items()}
        at = engine.keeper.refused_at.get(name)
        yield Told(line.estate, strays, line.refused, at, line.closed)


def restore(engine: Engine, told: Iterable[Told], unsettled: Unsettled | None) -> None:
    """Of an engine that knows its nodes, and no pods yet."""
    keeper, estates = engine.keeper, engine.cluster.estates
    for each in told:
        name = each.estate.name
        engine.handle(on.EstateSeen(each.estate), 0.0)
        estates.stray(name, {id: int(mask, 16) for id, mask in each.strays.items()})
        estates.refuse(name, each.refused)
        estates.close(name, each.closed)
        if each.refused_at is not None:
            keeper.refused_at[name] = each.refused_at
    if unsettled is not None:
        keeper.made |= set(unsettled.made)
        keeper.unowned |= {(estate, id): since for estate, id, since in unsettled.unowned}
        keeper.bereft |= dict(unsettled.bereft)
