"""Pretend clusters in one line: `8xA100*100,inf1.24xlarge*4,cpu*2`.

Each part is a machine and how many of it. A machine is a number of accelerators and their model
(`8xA100`), a cloud's instance type (`trn1.32xlarge`), or `cpu`, which has none.
"""

import re
from typing import Any

from msgspec import Struct

from bayplan.core.model.devices import (
    INVENTORY,
    Device,
    Devices,
    Inventory,
    write_inventory,
)
from bayplan.core.model.vendors import FULL_COMPUTE, NVIDIA

Json = dict[str, Any]

DEFAULT = "8xA100*4,cpu*2"
MOST_NODES = 20_000
ZONES = ("zone-a", "zone-b", "zone-c")
_PART = re.compile(r"(?P<machine>[^*,\s]+)(\*(?P<count>\d+))?")
_COUNTED = re.compile(r"(?P<count>\d{1,2})x(?P<model>\w+)")
_GPU, _NEURON, _NEURON_CORE = "nvidia.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
# The full names that NVIDIA's feature discovery gives, and MiB of memory.
_MODELS = {
    "T4": ("Tesla-T4", 15_360),
    "V100": ("Tesla-V100-SXM2-16GB", 16_384),
    "P100": ("Tesla-P100-PCIE-16GB", 16_384),
    "L4": ("NVIDIA-L4", 23_034),
    "A10": ("NVIDIA-A10", 23_028),
    "A10G": ("NVIDIA-A10G", 23_028),
    "A40": ("NVIDIA-A40", 46_068),
    "L40S": ("NVIDIA-L40S", 46_068),
    "A100": ("NVIDIA-A100-SXM4-80GB", 81_920),
    "H100": ("NVIDIA-H100-80GB-HBM3", 81_559),
    "H200": ("NVIDIA-H200", 143_771),
    "B200": ("NVIDIA-B200", 183_359),
}


class Machine(Struct, frozen=True):
    name: str
    cpus: int
    memory_gib: int
    gpus: int = 0
    model: str = ""
    neurons: int = 0  # Neuron devices
    cores: int = 0  # Neuron cores, of all devices together
    instance: str = ""


def _aws(name: str, cpus: int, memory_gib: int, **has: Any) -> Machine:
    return Machine(name, cpus, memory_gib, instance=name, **has)


_INSTANCES = {  # as their maker lists them
    machine.name: machine
    for machine in (
        _aws("inf1.xlarge", 4, 8, neurons=1, cores=4),
        _aws("inf1.2xlarge", 8, 16, neurons=1, cores=4),
        _aws("inf1.6xlarge", 24, 48, neurons=4, cores=16),
        _aws("inf1.24xlarge", 96, 192, neurons=16, cores=64),
        _aws("inf2.xlarge", 4, 16, neurons=1, cores=2),
        _aws("inf2.8xlarge", 32, 128, neurons=1, cores=2),
        _aws("inf2.24xlarge", 96, 384, neurons=6, cores=12),
        _aws("inf2.48xlarge", 192, 768, neurons=12, cores=24),
        _aws("trn1.2xlarge", 8, 32, neurons=1, cores=2),
        _aws("trn1.32xlarge", 128, 512, neurons=16, cores=32),
        _aws("trn1n.32xlarge", 128, 512, neurons=16, cores=32),
        _aws("trn2.48xlarge", 192, 2048, neurons=16, cores=64),
        _aws("g4dn.xlarge", 4, 16, gpus=1, model="T4"),
        _aws("g4dn.12xlarge", 48, 192, gpus=4, model="T4"),
        _aws("g5.xlarge", 4, 16, gpus=1, model="A10G"),
        _aws("g5.12xlarge", 48, 192, gpus=4, model="A10G"),
        _aws("g5.48xlarge", 192, 768, gpus=8, model="A10G"),
        _aws("p3.16xlarge", 64, 488, gpus=8, model="V100"),
        _aws("p4de.24xlarge", 96, 1152, gpus=8, model="A100"),
        _aws("p5.48xlarge", 192, 2048, gpus=8, model="H100"),
        _aws("p5en.48xlarge", 192, 2048, gpus=8, model="H200"),
    )
}


class BadSpec(ValueError):
    """A SPEC that does not describe nodes."""


def nodes(spec: str) -> list[Json]:
    """The Node objects that a SPEC describes."""
    found: list[Json] = []
    counts: dict[str, int] = {}
    for part in spec.split(","):
        parsed = _PART.fullmatch(part.strip())
        if parsed is None:
            raise BadSpec(f"{part.strip()!r} is not of the form MACHINE*COUNT, such as 8xA100*4")
        machine = machine_of(parsed["machine"])
        count = int(parsed["count"] or 1)
        if count < 1 or len(found) + count > MOST_NODES:
            raise BadSpec(f"{part.strip()!r}: there must be from 1 to {MOST_NODES} nodes in all")
        first = counts.get(machine.name, 0)
        counts[machine.name] = first + count
        found += [node(machine, first + i, len(found) + i) for i in range(count)]
    return found


def machine_of(name: str) -> Machine:
    if name.lower() == "cpu":
        return Machine("cpu", cpus=64, memory_gib=256)
    if name in _INSTANCES:
        return _INSTANCES[name]
    counted = _COUNTED.fullmatch(name)
    if counted is None:
        raise BadSpec(
            f"{name!r} is no machine: it is a count and a model such as 8xA100, an instance type "
            f"such as {', '.join(sorted(_INSTANCES)[:3])}, or cpu"
        )
    model, gpus = counted["model"].upper(), int(counted["count"])
    if model not in _MODELS:
        raise BadSpec(f"{name!r}: there is no model {model}; there are {', '.join(_MODELS)}")
    if not 1 <= gpus <= 64:
        raise BadSpec(f"{name!r}: a machine has from 1 to 64 accelerators")
    return Machine(f"{gpus}x{model.lower()}", 16 * gpus, 128 * gpus, gpus, model)


def node(machine: Machine, number: int, place: int) -> Json:
    name = f"{machine.name}-{number}"
    amounts = {
        "cpu": str(machine.cpus),
        "memory": f"{machine.memory_gib}Gi",
        "pods": "110",
        "ephemeral-storage": "1Ti",
    }
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": ZONES[place % len(ZONES)],
    }
    if machine.instance:
        labels["node.kubernetes.io/instance-type"] = machine.instance
    notes = {}
    if machine.gpus:
        product, memory_mib = _MODELS[machine.model]
        cards = tuple(
            Device(f"GPU-{name}-{i}", i, memory_mib, numa=2 * i // machine.gpus, model=product)
            for i in range(machine.gpus)
        )
        notes[INVENTORY] = write_inventory(Inventory({NVIDIA.name: Devices(cards)}))
        amounts["bayplan.dev/gpu-memory-mib"] = str(machine.gpus * memory_mib)
        amounts["bayplan.dev/gpu-compute-percent"] = str(machine.gpus * FULL_COMPUTE)
        amounts[_GPU] = str(machine.gpus)
        labels["nvidia.com/gpu.product"] = product
        labels["nvidia.com/gpu.count"] = str(machine.gpus)
        labels["nvidia.com/gpu.memory"] = str(memory_mib)
    if machine.neurons:
        amounts[_NEURON] = str(machine.neurons)
        amounts[_NEURON_CORE] = str(machine.cores)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": notes},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
