"""What a profiler has written on nodes and pods, in every form that Alnair's profilers have had.

Anybody may write annotations, so nothing in them is believed beyond its type and its range. What is
wrong is left out, by itself, and said with the name of the field; the rest of the object counts as
if it had not been there. Texts in the form of Python dicts are read by `literals`, never evaluated.

On nodes, under `ai.centaurus.io/`: `gpu-static` and `gpu-<i>` are dicts; `timestamp` says when all
of them were last true (ours; Alnair's profiler does not write it on nodes); the oldest profiler
wrote `GPU-<i>-job-type` and `GPU-<i>-mem-util-max`. On pods, under the same name:
`<node>-gpu-<i>_util`, `_mem_mb` and `_mem_bw_util`, `cpu_util`, `cpu_mem_mb`; in the newest form,
under `alnair.centaurusinfra.io/`: `max_cpu_util`, `max_cpu_mem_mb`, and the dicts `gpu_util` and
`gpu_mem_util` by device and process.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bayplan.core.model.utilisation import MOST_DEVICES, UNKNOWN, DeviceUse, NodeUse, PodUse
from bayplan.kube.literals import NoLiteral, parse
from bayplan.kube.terms import short

OLD, NEW = "ai.centaurus.io/", "alnair.centaurusinfra.io/"
MARK = b"centaurus"  # in the JSON of every object that has any of it
STATIC, TIMESTAMP = f"{OLD}gpu-static", f"{OLD}timestamp"
TIME_FORM = "%Y-%m-%d %H:%M:%S"  # UTC
MIB_PER_GIB = 1024
MOST_MIB = 1 << 30  # a PiB: nothing has more
MOST_CPU_PERCENT = 100_000  # of one core

_INDEX = "(0|[1-9][0-9]{0,3})"  # one name for each device
_DEVICE = re.compile(rf"ai\.centaurus\.io/gpu-{_INDEX}")
_OLDEST = re.compile(rf"ai\.centaurus\.io/GPU-{_INDEX}-(job-type|mem-util-max)")
_OF_POD = re.compile(rf"ai\.centaurus\.io/.{{1,253}}-gpu-{_INDEX}_(util|mem_mb|mem_bw_util)")
_PROCESS = re.compile(rf"gpu_{_INDEX}(_[0-9]{{1,10}})?")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,18})?) ?(GB|GiB|MB|MiB)")
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_PCIE = re.compile(r"([1-9])x([1-9][0-9]?)")

Say = Callable[[str, str], None]  # told the field, and what is wrong with it
Annotations = Mapping[str, str]


class _Bad(ValueError):
    """A value that cannot be what it should be."""


def node_use(annotations: Annotations, say: Say) -> NodeUse | None:
    """What is used of the node; None where nobody has said anything of it."""
    at_s = 0.0
    if TIMESTAMP in annotations:
        at_s = _heard(_at(TIMESTAMP), annotations[TIMESTAMP], _time, say) or 0.0
    devices: dict[int, DeviceUse] = {}
    for index, fields in _device_fields(annotations, say):
        fields["at_s"] = max(at_s, fields.get("at_s", 0.0))
        if len(fields) > 1:
            devices[index] = DeviceUse(index, **fields)
    static = _static(annotations, say)
    if not static and not devices:
        return None
    return NodeUse(**static, devices=tuple(devices[index] for index in sorted(devices)))


def pod_use(annotations: Annotations, say: Say) -> PodUse | None:
    """The most that the pod was seen to use; None where nobody has said anything of it."""
    found: dict[str, int] = {}
    for key, text in annotations.items():
        if key.startswith(NEW):
            values = _newest(key, text, say)
        elif key.startswith(OLD):
            values = _of_pod(key, text, say)
        else:
            continue
        for name, value in values:
            found[name] = max(value, found.get(name, UNKNOWN))
    return PodUse(**found) if found else None


# ---- nodes


def _static(annotations: Annotations, say: Say) -> dict[str, Any]:
    """`{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}`"""
    told = _dict(STATIC, annotations.get(STATIC), say)
    found: dict[str, Any] = {}
    for name, field, read in (
        ("count", "count", _count),
        ("model", "model", _model),
        ("mem_size", "memory_gib", lambda value: -(-_mib(value) // MIB_PER_GIB)),
    ):
        if name in told:
            value = _heard(f"{_at(STATIC)}.{name}", told[name], read, say)
            if value is not None:
                found[field] = value
    if "pcie_gen_width" in told:
        pcie = _heard(f"{_at(STATIC)}.pcie_gen_width", told["pcie_gen_width"], _pcie, say)
        if pcie is not None:
            found["pcie_gen"], found["pcie_width"] = pcie
    return found


_DEVICE_FIELDS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("mem_used", "used_mib", lambda value: _mib(value)),
    ("mem_free", "free_mib", lambda value: _mib(value)),
    ("max_mem_util", "copy_percent", lambda value: _percent(value)),  # as it was called at first
    ("max_mem_bw_util", "copy_percent", lambda value: _percent(value)),
    ("max_gpu_util", "gpu_percent", lambda value: _percent(value)),
    ("timestamp", "at_s", lambda value: _time(value)),
)


def _device_fields(annotations: Annotations, say: Say) -> Iterator[tuple[int, dict[str, Any]]]:
    """By index what is said of a device; the newer form counts more than the oldest."""
    found: dict[int, dict[str, Any]] = {}
    for key, text in annotations.items():
        oldest, device = _OLDEST.fullmatch(key), _DEVICE.fullmatch(key)
        match = device or oldest
        if match is None:
            continue
        index = int(match[1])
        if index >= MOST_DEVICES:
            say(_at(key), f"a device with a number above {MOST_DEVICES - 1} is not read")
            continue
        fields = found.setdefault(index, {})
        if device is not None:
            told = _dict(key, text, say)
            for name, field, read in _DEVICE_FIELDS:
                if name in told:
                    value = _heard(f"{_at(key)}.{name}", told[name], read, say)
                    if value is not None:
                        fields[field] = value
        elif oldest is not None and oldest[2] == "mem-util-max":
            value = _heard(_at(key), text, _percent, say)
            if value is not None:
                fields.setdefault("copy_percent", value)
        elif text == "Empty":  # nobody computes there; DLT says no more than that somebody does
            fields.setdefault("gpu_percent", 0)
    yield from found.items()


# ---- pods


_POD_FIELDS = {"util": "gpu_percent", "mem_bw_util": "copy_percent", "mem_mb": "gpu_memory_mib"}


def _of_pod(key: str, text: str, say: Say) -> Iterator[tuple[str, int]]:
    match = _OF_POD.fullmatch(key)
    field, read = "", _percent
    if match is not None:
        field = _POD_FIELDS[match[2]]
        read = _megabytes if match[2] == "mem_mb" else _percent
    elif key == f"{OLD}cpu_util":
        field, read = "cpu_percent", _cpu
    elif key == f"{OLD}cpu_mem_mb":
        field, read = "memory_mib", _megabytes
    value = _heard(_at(key), text, read, say) if field else None
    if value is not None:
        yield field, value


def _newest(key: str, text: str, say: Say) -> Iterator[tuple[str, int]]:
    name = key.removeprefix(NEW)
    if name in ("max_cpu_util", "max_cpu_mem_mb"):
        is_cpu = name == "max_cpu_util"
        value = _heard(_at(key), text, _cpu if is_cpu else _megabytes, say)
        if value is not None:
            yield ("cpu_percent" if is_cpu else "memory_mib"), value
    elif name in ("gpu_util", "gpu_mem_util"):
        by_device: dict[str, int] = {}  # processes of one device add up
        for process, measure in _dict(key, text, say).items():
            match = _PROCESS.fullmatch(process)
            value = _heard(f"{_at(key)}.{process}", measure, _percent, say) if match else None
            if match is not None and value is not None:
                by_device[match[1]] = min(by_device.get(match[1], 0) + value, 100)
        if by_device:
            yield ("gpu_percent" if name == "gpu_util" else "copy_percent"), max(by_device.values())


# ---- values


def _at(key: str) -> str:
    return f"metadata.annotations[{key}]"


def _heard(field: str, value: Any, read: Callable[[Any], Any], say: Say) -> Any:
    """What the value means, or None after what is wrong with it was said."""
    try:
        return read(value)
    except _Bad as bad:
        say(field, str(bad))
        return None


def _dict(key: str, text: str | None, say: Say) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = parse(text)
    except NoLiteral as error:
        say(_at(key), str(error))
        return {}
    if not isinstance(value, dict):
        say(_at(key), "it is no dict")
        return {}
    return value


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and len(value) <= 32 and _NUMBER.fullmatch(value.strip()):
        return float(value)
    raise _Bad(f"{_shown(value)} is no number")


def _ranged(value: Any, most: int, unit: str) -> int:
    number = _number(value)
    if not 0 <= number <= most:
        raise _Bad(f"{_shown(value)} is not within 0 and {most} {unit}")
    return round(number)


def _percent(value: Any) -> int:
    return _ranged(value.removesuffix("%") if isinstance(value, str) else value, 100, "percent")


def _cpu(value: Any) -> int:
    return _ranged(value, MOST_CPU_PERCENT, "percent of a core")


def _megabytes(value: Any) -> int:
    return _ranged(value, MOST_MIB, "MiB")


def _count(value: Any) -> int:
    return _ranged(value, MOST_DEVICES, "devices")


def _mib(value: Any) -> int:
    """`11GB`, which is of 1024 MB each; a number alone is of MiB."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) <= 32 else None
    if match is None:
        return _megabytes(value)
    return _ranged(float(match[1]) * (MIB_PER_GIB if match[2][0] == "G" else 1), MOST_MIB, "MiB")


def _model(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 128:
        raise _Bad("it is no name of a model")
    return value


def _pcie(value: Any) -> tuple[int, int]:
    match = _PCIE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _Bad(f"{_shown(value)} is no generation and width such as 3x16")
    return int(match[1]), int(match[2])


def _time(value: Any) -> float:
    """Seconds; at least 1, since 0 would be no time at all."""
    try:
        if not isinstance(value, str) or len(value) > 32:
            raise ValueError
        return max(datetime.strptime(value, TIME_FORM).replace(tzinfo=UTC).timestamp(), 1.0)
    except (ValueError, OverflowError):
        raise _Bad(f"{_shown(value)} is no time such as 2022-03-01 12:00:00") from None


def _shown(value: Any) -> str:
    return short(value) if isinstance(value, str) else short(repr(value))
