"""Asks NVML what the cards do, again and again, and prints each answer as a line of JSON.

Run as a module, in a process of its own: the library keeps 15 to 20 MiB, and a call into a driver
whose card has died may never come back. It ends with whoever reads it. A card that cannot be asked
is left out, and why is told; the others are not concerned.

It imports nothing but Python's own and pynvml, so that the process stays small.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

Json = dict[str, Any]


def ask(nvml: Any) -> Json:
    """One moment; the library's own error when it does not work at all."""
    cards: list[Json] = []
    errors: list[str] = []
    for i in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(_card(nvml, i))
        except nvml.NVMLError as error:
            errors.append(f"NVML: card {i} cannot be asked what it does: {error}")
    return {"cards": cards, "errors": errors}


def _card(nvml: Any, index: int) -> Json:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _memory(nvml, handle)
    card: Json = {
        "id": _text(nvml.nvmlDeviceGetUUID(handle)),
        "index": index,
        "model": _text(nvml.nvmlDeviceGetName(handle)),
        "total": int(memory.total),
        "used": int(memory.used),
        "processes": [],
    }
    with suppress(nvml.NVMLError):  # a card in slices has none of its own
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        card |= {"gpu": int(rates.gpu), "bandwidth": int(rates.memory)}
    with suppress(nvml.NVMLError):  # what it can have: an idle card slows its link down
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        card["pcie"] = f"{generation}x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
    with suppress(nvml.NVMLError):
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            taken = int(process.usedGpuMemory or 0)
            card["processes"].append({"pid": int(process.pid), "memory": taken})
    return card


def _memory(nvml: Any, handle: Any) -> Any:
    """Without what the driver keeps for itself, which older ones count as used: half a GiB of an
    idle H200."""
    with suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def _text(found: str | bytes) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found


def sample(nvml: Any, every_s: float, write: Callable[[str], object]) -> None:
    """Until the library fails or nobody reads; the beat does not drift."""
    nvml.nvmlInit()
    due = time.monotonic()
    while True:
        write(json.dumps(ask(nvml)) + "\n")
        due = max(due + every_s, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))


def main(every_s: float) -> int:
    """1 and a line of plain text when there is nothing to ask."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        sys.stdout.write("NVML needs the package nvidia-ml-py, which bayplan[agent] brings\n")
        return 1

    def write(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    try:
        sample(nvml, every_s, write)
    except nvml.NVMLError as error:
        sys.stdout.write(f"NVML: {error}\n")
        return 1
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()  # nobody is left to tell
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
