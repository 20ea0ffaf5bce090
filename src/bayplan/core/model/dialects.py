"""How other node software writes devices down, read into our own terms.

Each reader takes the annotations of a node or a pod. None: they say nothing of it. `Unknown`: they
say something that cannot be made out, and something is held all the same. Nothing is evaluated, and
numbers are plain decimal digits.

| software | on the node | on a pod |
|---|---|---|
| Alnair | how many cards, their uuids, the GiB of each | one `uuid_number` per GiB that it holds |
| gpushare | (its resources only) | the index of the card, and how much of it |
| HAMi | uuid, split, MiB, cores, type, NUMA node, health | per container uuid, type, MiB, cores |
| Neuron | maps of what is in use, which nobody should trust | the indexes of devices, or of cores |

HAMi empties its list of what is to be allocated as containers start; what stays is the other list.
"""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from bayplan.core.model.devices import MOST_DEVICES, Device, Devices, Unknown
from bayplan.core.model.vendors import MIB_PER_GIB

Annotations = Mapping[str, str]

ALNAIR = "ai.centaurus.io"
ALNAIR_COUNT, ALNAIR_UUIDS = f"{ALNAIR}/physical-gpu-count", f"{ALNAIR}/physical-gpu-uuids"
# The scheduler read the first; the device plugin, mistyped, wrote the second.
ALNAIR_SIZES = (f"{ALNAIR}/virtual-gpu-count", f"{ALNAIR}/vitual-gpu-count")
ALNAIR_HELD = f"{ALNAIR}/alnair-gpu-id"
GPUSHARE_INDEX, GPUSHARE_AMOUNT = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"
HAMI_NODE, HAMI_HELD = "hami.io/node-nvidia-register", "hami.io/vgpu-devices-allocated"
HAMI_TO_COME = "hami.io/vgpu-devices-to-allocate"
# The extension writes the first two; the documents show the others.
NEURON_IDS, NEURON_TYPE = "AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE"
NEURON_DEVICES, NEURON_CORES = "NEURON_DEVS", "NEURON_CORES"
NEURON_SAID = (NEURON_IDS, NEURON_DEVICES, NEURON_CORES)
NEURON_ALLOCATED, NEURON_TIME = "NEURON_ALLOCATED", "NEURON_ALLOC_TIME"
NEURON_DEVICE_MAP, NEURON_CORE_MAP = "NEURON_DEV_USAGE_MAP", "NEURON_CORE_USAGE_MAP"
NEURON_MAPS = (NEURON_DEVICE_MAP, NEURON_CORE_MAP)

_LONGEST = 9  # digits of a number
_LONGEST_TEXT = 64 << 10


class Unit(Enum):
    """Of amounts of memory."""

    GIB = "GiB"
    MIB = "MiB"
    NODES_OWN = "what the nodes count in"


GIB, MIB, NODES_OWN = Unit.GIB, Unit.MIB, Unit.NODES_OWN


class Given(Struct, frozen=True):
    """What a pod has of a device. The id is "#" and the index, where only that is said."""

    id: str
    amount: int
    unit: Unit
    compute: int = 0  # percent


class _Odd(ValueError):
    """What is odd about a text."""


def alnair_node(annotations: Annotations) -> Devices | Unknown | None:
    """One size stands for all cards, as in the original."""
    count = annotations.get(ALNAIR_COUNT)
    sizes = next((annotations[key] for key in ALNAIR_SIZES if key in annotations), None)
    if count is None and sizes is None:
        return None
    try:
        if count is None or sizes is None:
            raise _Odd(f"{ALNAIR_COUNT} and {ALNAIR_SIZES[0]} are not both there")
        number, listed = _number(count), [_number(size) for size in _parts(sizes, ",")]
        if number > MOST_DEVICES:
            raise _Odd(f"{number} cards, more than {MOST_DEVICES}")
        if number > 1 and len(listed) == 1:
            listed *= number
        uuids = _parts(annotations.get(ALNAIR_UUIDS, ""), ",")
        names = uuids or [str(i) for i in range(number)]
        if not number == len(listed) == len(names) == len(set(names)):
            raise _Odd(f"{number} cards, {len(listed)} sizes, {len(set(names))} names")
        return Devices(
            tuple(
                Device(name, i, memory_mib=size * MIB_PER_GIB)
                for i, (name, size) in enumerate(zip(names, listed, strict=True))
            )
        )
    except _Odd as odd:
        return Unknown(f"{ALNAIR}: {odd}")


def alnair_pod(annotations: Annotations) -> tuple[Given, ...] | Unknown | None:
    """What the device plugin gave."""
    text = annotations.get(ALNAIR_HELD)
    if text is None:
        return None
    try:
        held: dict[str, int] = {}
        for part in _parts(text, ","):
            uuid, mark, number = part.rpartition("_")
            if not uuid or not mark:
                raise _Odd(f"{part[:80]!r} is no uuid and number")
            _number(number)
            held[uuid] = held.get(uuid, 0) + 1
        if not held:
            raise _Odd("it is empty")
        return tuple(Given(uuid, amount, GIB) for uuid, amount in held.items())
    except _Odd as odd:
        return Unknown(f"{ALNAIR_HELD}: {odd}")


def gpushare_pod(annotations: Annotations) -> tuple[Given, ...] | Unknown | None:
    index, amount = annotations.get(GPUSHARE_INDEX), annotations.get(GPUSHARE_AMOUNT)
    if index is None and amount is None:
        return None
    try:
        if index is None or amount is None:
            raise _Odd(f"{GPUSHARE_INDEX} and {GPUSHARE_AMOUNT} are not both there")
        if _number(amount) < 1 or _number(index) >= 1 << 16:
            raise _Odd(f"{amount} of card {index}")
        return (Given(f"#{_number(index)}", _number(amount), NODES_OWN),)
    except _Odd as odd:
        return Unknown(f"gpushare: {odd}")


def hami_node(annotations: Annotations) -> Devices | Unknown | None:
    text = annotations.get(HAMI_NODE)
    if text is None:
        return None
    try:
        cards = _parts(text, ":")
        if len(cards) > MOST_DEVICES:
            raise _Odd(f"{len(cards)} cards, more than {MOST_DEVICES}")
        devices = tuple(_hami_card(i, part) for i, part in enumerate(cards))
        if len({device.id for device in devices}) < len(devices):
            raise _Odd("a card is there twice")
        return Devices(devices)
    except _Odd as odd:
        return Unknown(f"{HAMI_NODE}: {odd}")


def _hami_card(index: int, text: str) -> Device:
    fields = text.split(",")
    if len(fields) < 7 or not fields[0]:
        raise _Odd(f"{text[:80]!r} has not its seven fields")
    uuid, _, memory, _, model, numa, health = fields[:7]
    if health not in ("true", "false"):
        raise _Odd(f"{health[:80]!r} is no health")
    node = _number(numa.removeprefix("-"))  # -1 where there is none
    known = not numa.strip().startswith("-") and node < 1 << 10
    return Device(uuid, index, _number(memory), node if known else -1, health == "true", model)


def hami_pod(annotations: Annotations) -> tuple[Given, ...] | Unknown | None:
    """What all containers hold together."""
    text = annotations.get(HAMI_HELD, annotations.get(HAMI_TO_COME))
    if text is None:
        return None
    try:
        held: dict[str, tuple[int, int]] = {}
        for container in _parts(text, ";"):
            for card in _parts(container, ":"):
                fields = card.split(",")
                if len(fields) != 4 or not fields[0]:
                    raise _Odd(f"{card[:80]!r} has not its four fields")
                memory, compute = held.get(fields[0], (0, 0))
                memory += max(_number(fields[2]), 1)
                held[fields[0]] = memory, compute + _number(fields[3])
        found = (Given(uuid, memory, MIB, cores) for uuid, (memory, cores) in held.items())
        return tuple(found) or None
    except _Odd as odd:
        return Unknown(f"{HAMI_HELD}: {odd}")


def neuron_pod(
    annotations: Annotations, *, by_core: bool, both: bool
) -> tuple[int, ...] | Unknown | None:
    """The numbers of the devices, or cores, that a pod was given which asks for such, or for both.
    Where two annotations say it, they must agree."""
    try:
        said = [annotations.get(NEURON_CORES if by_core else NEURON_DEVICES)]
        if _speaks_of_cores(annotations, default=None if both else by_core) is by_core:
            said.append(annotations.get(NEURON_IDS))
        texts = [text for text in said if text is not None]
        found = [tuple(_number(part) for part in _parts(text, ",")) for text in texts]
        if any(set(each) != set(found[0]) for each in found):
            raise _Odd(f"{texts[0][:80]!r} is not {texts[1][:80]!r}")
        for text, numbers in zip(texts, found, strict=True):
            if not numbers or len(set(numbers)) < len(numbers) or max(numbers) >= 1 << 16:
                raise _Odd(f"{text[:80]!r} is no list of different numbers")
        return found[0] if found else None
    except _Odd as odd:
        return Unknown(f"{NEURON_IDS}: {odd}")


def _speaks_of_cores(annotations: Annotations, default: bool | None) -> bool | None:
    """What the list that has one name for both is about."""
    kind = annotations.get(NEURON_TYPE)
    if kind is None:
        return default
    known = {"neuroncore": True, "neuron": False, "neurondevice": False}
    name = kind.rpartition("/")[2]
    if name not in known:
        raise _Odd(f"{NEURON_TYPE} is {kind[:80]!r}")
    return known[name]


def _parts(text: str, mark: str) -> list[str]:
    """Without the empty ones, since most of these lists end with their mark."""
    if len(text) > _LONGEST_TEXT:
        raise _Odd(f"{len(text)} characters")
    return [part for part in (each.strip() for each in text.split(mark)) if part]


def _number(text: str) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > _LONGEST:
        raise _Odd(f"{text[:80]!r} is no number")
    return int(text)
