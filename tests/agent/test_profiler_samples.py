"""What cards and pods do, from drivers, files and the kernel; and how it is told."""

import ast
import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.agent import sampler
from bayplan.agent.profile import (
    DOMAIN,
    MOST_PIDS,
    Seen,
    Usage,
    Window,
    node_annotations,
    ours_of_pod,
    ours_on_node,
    pod_annotations,
    stamp,
)
from bayplan.agent.samples import BadSample, Card, FileSamples, NvmlSamples, OnCard, Sample
from bayplan.agent.usage import Counters, Kernel, usage_between
from bayplan.cli.main import main

GIB, MIB = 1 << 30, 1 << 20
K80 = Card("GPU-a", 0, "Tesla K80", 12 * GIB - 5, 11 * GIB - 7, "1x16", 40, 30)
UID = "0a1b2c3d-1111-2222-3333-444455556666"


# ---- the texts


def test_the_texts_are_those_of_the_original() -> None:
    card = Card(
        "a",
        0,
        "Tesla K80",
        12 * GIB - 5,
        11 * GIB - 7,
        "1x16",
        0,
        0,
        (OnCard(18477, 11094 * MIB - 1),),
    )
    texts = node_annotations({0: Seen(card, 88, 66, None), 1: Seen(K80, 5, 4, 20.0)})

    assert texts == {
        "ai.centaurus.io/gpu-static": "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', "
        "'pcie_gen_width': '1x16'}",
        "ai.centaurus.io/gpu-0": "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 1, "
        "'pid-mem': [(18477, '11094MB')], 'cyclic_pattern': False, "
        "'max_mem_bw_util': 66, 'max_gpu_util': 88}",
        "ai.centaurus.io/gpu-1": "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 0, "
        "'cyclic_pattern': True, 'period': '20.0', 'max_mem_bw_util': 4, 'max_gpu_util': 5}",
    }
    assert node_annotations({}) == {}
    assert ours_on_node(texts) == texts.keys()
    assert stamp(1_767_225_600.9) == "2026-01-01 00:00:00"


def test_a_card_in_slices_has_no_utilisation() -> None:
    card = Card("a", 0, "A", GIB, 0)
    text = node_annotations({0: Seen(card, None, None, None)})["ai.centaurus.io/gpu-0"]
    assert (
        text == "{'mem_used': '0GB', 'mem_free': '1GB', 'process_cnt': 0, 'cyclic_pattern': False}"
    )


def test_the_annotations_of_many_cards_with_many_processes_are_bounded() -> None:
    processes = tuple(OnCard(1 << 31, i * GIB) for i in range(1000))
    card = Card("a", 0, "'\"\\" * 40, 200 * GIB, 0, "5x16", 1, 1, processes)
    texts = node_annotations(dict.fromkeys(range(256), Seen(card, 100, 100, 10.0)))
    told = ast.literal_eval(texts["ai.centaurus.io/gpu-7"])

    assert sum(len(key) + len(text) for key, text in texts.items()) < 180 << 10  # of 256 KiB
    assert told["process_cnt"] == 1000
    assert [each[1] for each in told["pid-mem"]] == [
        f"{(999 - i) << 10}MB" for i in range(MOST_PIDS)
    ]


def test_what_a_pod_is_told() -> None:
    shared = Card(
        "a", 0, "A", GIB, 0, processes=(OnCard(1, 3 * MIB), OnCard(2, 5 * MIB), OnCard(3, MIB + 1))
    )
    found = {0: Seen(shared, 88, 66, None), 3: Seen(K80, 5, 4, None)}
    usage = Usage(150.25, 2000.5, 0.0, None)

    texts = pod_annotations("n1", found, frozenset({1, 3}), usage)

    assert texts == {
        "ai.centaurus.io/n1-gpu-0_util": "88",
        "ai.centaurus.io/n1-gpu-0_mem_mb": "5.0",
        "ai.centaurus.io/n1-gpu-0_mem_bw_util": "66",
        "ai.centaurus.io/cpu_util": "150.25",
        "ai.centaurus.io/cpu_mem_mb": "2000.5",
        "ai.centaurus.io/network_mbps": "0.0",
    }
    assert ours_of_pod({*texts, f"{DOMAIN}/other", "x/cpu_util", f"{DOMAIN}/timestamp"}) == {
        *texts,
        f"{DOMAIN}/timestamp",
    }
    long = pod_annotations("n" * 47, found, frozenset({1}), usage)
    assert f"{DOMAIN}/{'n' * 47}-gpu-0_mem_mb" in long  # 61 characters
    assert not [key for key in long if "mem_bw" in key]  # 65 would be refused, and all with them


# ---- the window


def test_peaks_are_those_of_two_minutes() -> None:
    window = Window()
    for second in range(200):
        gpu = 99 if second == 60 else 10
        window.take(
            Sample((Card("a", 0, "A", GIB, second, gpu=gpu, bandwidth=second % 10),)), second
        )

        (seen,) = window.look(second, {}).values()
        assert seen.card.used == second
        assert seen.gpu == (99 if 60 <= second <= 180 else 10)
    assert (seen.bandwidth, seen.period_s) == (9, 10.0)


def test_a_period_is_in_seconds_however_often_samples_come() -> None:
    window = Window()
    for i in range(60):
        bandwidth = 50 if i % 5 < 2 else 0
        window.take(Sample((Card("a", 0, "A", GIB, 0, bandwidth=bandwidth),)), 2.0 * i)
    assert window.look(118.0, {})[0].period_s == 10.0


def test_cards_go_by_the_index_under_which_the_cluster_knows_them() -> None:
    window = Window()
    cards = [Card(id, i, "A", GIB, 0) for i, id in enumerate("abc")]
    window.take(Sample(tuple(cards)), 0.0)
    window.take(Sample((cards[1],)), 10.0)

    assert {i: seen.card.id for i, seen in window.look(10.0, {"b": 2, "a": 5}).items()} == {
        2: "b",
        5: "a",
    }
    assert {i: seen.card.id for i, seen in window.look(16.0, {}).items()} == {1: "b"}
    assert window.look(26.0, {}) == {}


# ---- NVML


class NvmlError(Exception):
    pass


class FakeNvml:
    """The driver's library as pynvml wraps it."""

    NVMLError = NvmlError
    nvmlMemory_v2 = 2

    def __init__(self, cards: int = 2) -> None:
        self.cards = cards
        self.lost: set[int] = set()
        self.fails: set[str] = set()

    def _may(self, name: str) -> None:
        if name in self.fails:
            raise NvmlError("Not Supported")

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        self._may("count")
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        if i in self.lost:
            raise NvmlError("GPU is lost")
        return i

    def nvmlDeviceGetUUID(self, card: int) -> bytes:
        return b"GPU-%d" % card

    def nvmlDeviceGetName(self, card: int) -> str:
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, card: int, version: int = 1) -> Any:
        self._may(f"memory v{version}")
        return SimpleNamespace(total=100 * GIB, used=GIB if version == 2 else 2 * GIB)

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        self._may("rates")
        return SimpleNamespace(gpu=88, memory=66)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card: int) -> int:
        return 1  # idle cards slow down

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card: int) -> int:
        self._may("pcie")
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: int) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: int) -> int:
        return 16

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        self._may("processes")
        taken = (GIB, None)
        return [SimpleNamespace(pid=10 + i, usedGpuMemory=each) for i, each in enumerate(taken)]


def asked(library: FakeNvml) -> Sample:
    import msgspec

    return msgspec.json.decode(json.dumps(sampler.ask(library)), type=Sample)


def test_what_nvml_says() -> None:
    found = asked(FakeNvml())

    processes = (OnCard(10, GIB), OnCard(11, 0))
    assert found.cards[1] == Card("GPU-1", 1, "H200", 100 * GIB, GIB, "5x16", 88, 66, processes)
    assert not found.errors


def test_what_one_card_does_not_say_is_left_out() -> None:
    library = FakeNvml()
    library.lost = {0}
    found = asked(library)
    assert [card.id for card in found.cards] == ["GPU-1"]
    assert found.errors == ("NVML: card 0 cannot be asked what it does: GPU is lost",)
    library.fails = {"memory v2", "rates", "pcie", "processes"}
    assert asked(library).cards == (Card("GPU-1", 1, "H200", 100 * GIB, 2 * GIB),)
    library.fails = {"count"}
    with pytest.raises(NvmlError):
        asked(library)


def test_samples_keep_their_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    began: list[float] = []

    def write(line: str) -> None:
        began.append(now[0])
        now[0] += 2.5 if len(began) == 3 else 0.3  # what it took
        if len(began) == 6:
            raise BrokenPipeError

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(sampler, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(BrokenPipeError):
        sampler.sample(FakeNvml(), 1.0, write)
    assert began == pytest.approx([100.0, 101.0, 102.0, 104.5, 105.5, 106.5])


GOOD = json.dumps({"cards": [{"id": "a", "index": 0, "model": "A", "total": 5, "used": 1}]})


async def followed(
    program: str, until: Callable[[list[Sample], NvmlSamples], bool], silent_s: float = 20.0
) -> tuple[list[Sample], NvmlSamples]:
    """What came of a program in the place of NVML."""
    taken: list[Sample] = []
    samples = NvmlSamples((sys.executable, "-u", "-c", program), silent_s, again_s=0.01)
    task = asyncio.create_task(samples.run(taken.append))
    try:
        while not until(taken, samples):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return taken, samples


async def test_a_sampler_is_followed_and_begun_again() -> None:
    taken, _ = await followed(f"print({GOOD!r})", lambda taken, _: len(taken) >= 3)
    assert taken[0] == Sample((Card("a", 0, "A", 5, 1),))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('NVML: Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("raise SystemExit(3)", "NVML: the sampler ended with 3"),
        ("print('{')", "NVML: "),
        ("print('{\"cards\": 3}')", "NVML: Expected `array`"),
        (f"print({GOOD.replace('1}', '-1}')!r})", "NVML: Expected `int` >= 0"),
        ("print('{' + 'x' * (2 << 20))", "NVML: a line of more than"),
        ("import signal; signal.pause()", r"NVML: no answer within 0\.3 s"),
    ],
)
async def test_a_sampler_that_says_nothing_of_use(
    program: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    silent_s = 0.3 if "pause" in program else 20.0
    taken, _ = await followed(program, lambda _, samples: samples.troubles > 0, silent_s)

    assert taken == []
    assert caplog.messages[0].startswith("what cards do is not known: ")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(caplog.messages[0])


async def test_a_command_that_is_not_there() -> None:
    samples = NvmlSamples(("/nowhere",), again_s=0.01)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await samples.run(lambda sample: None)
    assert samples.troubles == 1


async def test_one_sampler_that_hangs_in_the_driver_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process inside the driver cannot be killed; each would stay for good."""
    killed: list[asyncio.subprocess.Process] = []
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: killed.append(self))
    samples = NvmlSamples(
        (sys.executable, "-c", "import signal; signal.pause()"), silent_s=0.3, again_s=0.01
    )
    task = asyncio.create_task(samples.run(lambda sample: None))
    while not killed:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)  # in which a second one would have been killed too
    assert len(killed) == 1
    killed[0].terminate()
    while len(killed) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    killed[1].terminate()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_the_real_sampler_says_why_it_cannot_work() -> None:
    """No machine that runs the tests is expected to have a card."""
    import subprocess

    program = (
        "import sys; sys.modules['pynvml'] = None; "
        "from bayplan.agent.sampler import main; sys.exit(main(1.0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == "NVML needs the package nvidia-ml-py, which bayplan[agent] brings\n"


# ---- files

FILE = """
cards:
- {index: 0, id: GPU-a, model: Tesla K80, memoryMib: 12288, usedMib: 100, pcie: 1x16, gpu: 88,
   bandwidth: [0, 66, 5], processes: [{pid: 7, memoryMib: 90}]}
- {index: 1, memoryMib: 1}
"""


def test_a_file_is_played(tmp_path: Path) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(FILE)
    source = FileSamples(file)

    first, other = source.read(0).cards

    assert first == Card(
        "GPU-a", 0, "Tesla K80", 12 * GIB, 100 * MIB, "1x16", 88, 0, (OnCard(7, 90 * MIB),)
    )
    assert other == Card("nvidia-1", 1, "", MIB, 0)
    assert [source.read(beat).cards[0].bandwidth for beat in range(5)] == [0, 66, 5, 0, 66]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cards: [", "not valid YAML"),
        ("", "Expected `object`"),
        ("card: []", "unknown field `card`"),
        ("{}", "missing required field `cards`"),
        ("cards: [{index: 0}]", "missing required field `memoryMib`"),
        ("cards: [{index: 0, memoryMib: 1, gpu: 101}]", "<= 100"),
        ("cards: [{index: 0, memoryMib: 1, gpu: -1}]", ">= 0"),
        ("cards: [{index: 0, memoryMib: 1, gpu: []}]", ">= 1"),
        ("cards: [{index: 0, memoryMib: 1, gpu: .nan}]", "Expected `int"),
        ("cards: [{index: 0, memoryMib: 1, pcie: fast}]", "regex"),
        ("cards: [{index: 0, memoryMib: 1, gpus: 1}]", "unknown field"),
        ("cards: [{index: 0, memoryMib: 1}, {index: 0, id: b, memoryMib: 1}]", "the same"),
    ],
)
def test_a_bad_file_is_told_by_its_name(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(text)
    with pytest.raises(BadSample, match=why) as caught:
        FileSamples(file).read()
    assert str(caught.value).startswith(f"{file}: ")
    arguments = ["agent", "--node", "n", "--devices", "nvidia=1", "--profile-file", str(file)]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert str(file) in result.stderr


async def test_a_file_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    taken: list[Sample] = []
    file = tmp_path / "cards.yaml"
    source = FileSamples(file, every_s=0.01)
    task = asyncio.create_task(source.run(taken.append))
    while not source.troubles:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert taken == []
    file.write_text(FILE)
    while not taken:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert source.troubles == 1


def test_the_profile_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(FILE)
    arguments = ["agent", "--print-profile", "--profile-period", "1", "--profile-file", str(file)]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0
    assert (
        "'model': 'Tesla K80', 'mem_size': '12GB'"
        in json.loads(result.stdout)["ai.centaurus.io/gpu-static"]
    )


# ---- the kernel


class Machine:
    def __init__(self, root: Path) -> None:
        self.root, self.kernel = root, Kernel(root)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def runs(self, pid: int, group: str) -> None:
        self.write(f"proc/{pid}/cgroup", f"0::/{group}/cri-containerd-abc.scope\n")

    def used(self, group: str, cpu_us: int, memory: int, written: int) -> None:
        at = f"sys/fs/cgroup/{group}"
        self.write(f"{at}/cpu.stat", f"usage_usec {cpu_us}\nuser_usec 5\nsystem_usec 1\n")
        self.write(f"{at}/memory.current", f"{memory}\n")
        self.write(
            f"{at}/io.stat", f"8:0 rbytes=9 wbytes={written} rios=1\n8:1 rbytes=1 wbytes=1\n"
        )

    def sent(self, pid: int, count: int) -> None:
        self.write(
            f"proc/{pid}/net/dev",
            "Inter-|   Receive                            |  Transmit\n"
            " face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n"
            "    lo: 5 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0\n"
            f"  eth0: 9 1 0 0 0 0 0 0 {count} 1 0 0 0 0 0 0\n",
        )


_UNDERSCORED = UID.replace("-", "_")
GROUPS = (
    f"kubepods.slice/kubepods-pod{_UNDERSCORED}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_UNDERSCORED}.slice",
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_UNDERSCORED}.slice",
    f"kubepods/pod{UID}",
    f"kubepods/burstable/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
)


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_pod_uses(tmp_path: Path, group: str) -> None:
    machine = Machine(tmp_path)
    machine.runs(7, group)
    machine.runs(8, f"../../{Path(group).name}")  # as seen from a container
    machine.runs(9, "system.slice/sshd.service")
    machine.used(group, 1_000_000, 2_000_000_000, 50_000_000)
    machine.sent(8, 10_000_000)

    assert machine.kernel.pods_of([7, 8, 9, 10]) == {UID: {7, 8}}
    first = machine.kernel.counters(UID, {7, 8}, 100.0, own_network=True)
    assert first == Counters(100.0, 1_000_000, 2_000_000_000, 10_000_000, 50_000_001)
    assert usage_between(None, first) == Usage(memory_mb=2000.0)

    machine.used(group, 16_000_000, 1_000_000_000, 80_000_000)
    machine.sent(8, 25_000_000)
    then = machine.kernel.counters(UID, {7, 8}, 110.0, own_network=True)
    assert usage_between(first, then) == Usage(150.0, 1000.0, 1.5, 3.0)
    assert machine.kernel.counters(UID, {8}, 110.0, own_network=False).sent_bytes is None


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    nothing = machine.kernel.counters(UID, {7}, 5.0, own_network=True)
    assert nothing == Counters(5.0, None, None, None, None)
    assert usage_between(nothing, nothing) == usage_between(None, nothing) == Usage()
    machine.write(f"sys/fs/cgroup/kubepods/pod{UID}/cpu.stat", "nonsense\n")
    machine.write("proc/7/net/dev", "eth0: 1 2\n")
    assert machine.kernel.counters(UID, {7}, 5.0, own_network=True) == nothing
    began_anew = Counters(6.0, 5, None, None, None)
    assert usage_between(Counters(5.0, 9, None, None, None), began_anew) == Usage()
