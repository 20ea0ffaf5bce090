"""Where devices come from: files, flags, drivers; and what is said when they cannot be read."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.agent.config import BadConfig, load_vendors
from bayplan.agent.inventory import BadInventory, FileSource, ListedSource, NodeNotSeen
from bayplan.agent.neuron import MachineSource, NeuronSource
from bayplan.agent.nvml import NvmlSource, ask
from bayplan.cli.main import main
from bayplan.core.model.devices import (
    Device,
    Devices,
    Inventory,
    read_inventory,
    write_inventory,
)
from bayplan.core.model.vendors import Vendors

VENDORS = Vendors()


# ---- files and flags


def test_a_file_in_yaml_or_json(tmp_path: Path) -> None:
    file = tmp_path / "devices"
    wanted = Inventory({"nvidia": Devices((Device("GPU-1", 0, 81920, 1, False, "H100"),))})
    file.write_text(
        """
        classes:
          nvidia:
            devices:
            - {id: GPU-1, index: 0, memoryMib: 81920, numa: 1, healthy: false, model: H100}
        """
    )
    assert FileSource(file, VENDORS).discover() == wanted
    device = {"id": "GPU-1", "index": 0, "memoryMib": 81920, "numa": 1, "healthy": False}
    written = {"v": 1, "classes": {"nvidia": {"devices": [device | {"model": "H100"}]}}}
    file.write_text(json.dumps(written))
    assert FileSource(file, VENDORS).discover() == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("classes: [", "not valid YAML"),
        ("- a", "should hold `classes`"),
        ("gpus: {}", "should hold `classes`"),
        ("classes: 3", "Expected `object`"),
        ("classes: {nvidia: {devices: [{id: a}]}}", "missing required field `index`"),
        ("classes: {nvidia: {devices: [{id: a, index: 1.5}]}}", "Expected `int`"),
        ("classes: {nvidia: {devices: [{id: a, index: 0, memoryMib: -1}]}}", ">= 0"),
        ("classes: {nvidia: {devices: [{id: a, index: 0, memoryMib: .nan}]}}", "Expected `int`"),
        (
            "classes: {nvidia: {devices: [{id: a, index: 0}, {id: a, index: 1}]}}",
            "a is there twice",
        ),
        ("classes: {nvidia: {devices: [{id: a, index: 0}], links: [[0, 1]]}}", "not 1 by 1"),
        ("classes: {amd: {devices: []}}", "no device class amd; there are: neuron, nvidia"),
        (
            "classes: {neuron: {devices: [{id: a, index: 0}, {id: b, index: 1, cores: 2}]}}",
            "neuron: its devices differ in cores",
        ),
        ("{v: 2, classes: {}}", "version 2"),
        ("\x00", "not valid YAML"),
        ('classes: {nvidia: {devices: [{id: "\\ud800", index: 0}]}}', "surrogates not allowed"),
        ("classes: {nvidia: {devices: [{id: a, index: 99999999999999999999}]}}", "<= 65535"),
        ("classes: {1: {devices: []}}", "no device class 1"),
        (f"classes: {{nvidia: {{devices: [{{id: a, index: 0, model: {'x' * 70000}}}]}}}}", "bytes"),
    ],
)
def test_a_bad_file_is_told_by_its_name(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(text)

    with pytest.raises(BadInventory) as caught:
        FileSource(file, VENDORS).discover()

    assert str(caught.value).startswith(f"{file}: ")
    assert why in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(BadInventory, match="/nowhere: No such file"):
        FileSource("/nowhere", VENDORS).discover()


def test_devices_by_flag() -> None:
    found = ListedSource(["nvidia=2x16GiB"], VENDORS).discover()

    assert found.classes["nvidia"].devices == (
        Device("nvidia-0", 0, 16384),
        Device("nvidia-1", 1, 16384),
    )
    assert ListedSource(["nvidia=0"], VENDORS).discover() == Inventory({"nvidia": Devices(())})


def test_devices_with_cores_by_flag() -> None:
    """Under the ids by which the scheduler knows them where there is no agent."""
    found = ListedSource(["neuron=2x4cores", "nvidia=1"], VENDORS).discover().classes
    machine = ListedSource(["neuron=trn1.32xlarge"], VENDORS).discover().classes["neuron"]

    assert found["neuron"] == Devices((Device("0", 0, cores=4), Device("1", 1, cores=4)))
    assert found["nvidia"].devices == (Device("nvidia-0", 0),)
    assert machine.shape == "rows"
    assert [(each.id, each.index, each.cores) for each in machine.devices] == [
        (str(i), i, 2) for i in range(16)
    ]


@pytest.mark.parametrize(
    "flag",
    [
        *("nvidia", "nvidia=", "nvidia=x", "nvidia=2x5", "amd=1", "=1", "neuron=2x0cores"),
        *("neuron=2x17cores", "neuron=p5.48xlarge", "nvidia=trn1.32xlarge"),
    ],
)
def test_a_bad_flag(flag: str) -> None:
    with pytest.raises(BadInventory, match=f"--devices {flag}"):
        ListedSource([flag], VENDORS)
    with pytest.raises(BadInventory, match="more than 256"):
        ListedSource(["neuron=33x8cores"], VENDORS)
    with pytest.raises(BadInventory, match="more than 256"):
        ListedSource(["nvidia=257"], VENDORS)
    with pytest.raises(BadInventory, match="a flag for class nvidia already"):
        ListedSource(["nvidia=1", "nvidia=2"], VENDORS)


# ---- the configuration and the command


def test_classes_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "kind: BayplanConfiguration\n"
        "devices: [{name: npu, resources: [{name: x.com/npu}], environment: NPUS, ids: index}]\n"
    )
    vendors = load_vendors(file)
    assert sorted(vendors.classes) == ["neuron", "npu", "nvidia"]
    assert vendors.resources["x.com/npu"][0].environment == "NPUS"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("devices: [", "not valid YAML"),
        ("[]", "should be a mapping"),
        ("devices: [{name: UPPER}]", "devices: .*matching regex"),
    ],
)
def test_a_bad_configuration(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadConfig, match=why):
        load_vendors(file)
    with pytest.raises(BadConfig, match="No such file"):
        load_vendors(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--devices", "nvidia=2"], "which node is this?"),
        (["--devices", "nvidia=2", "--inventory", "f"], "give one of them"),
        (["--devices", "amd=1", "--node", "n"], "no device class amd"),
        (["--inventory", "/nowhere", "--print-inventory"], "/nowhere: No such file"),
        (["--config", "/nowhere"], "/nowhere: No such file"),
        (["--node", "n", "--devices", "nvidia=1", "--kubeconfig", "/nowhere"], "does not exist"),
        (["--node", "n", "--instance-type", "p5.48xlarge"], "no machine of type p5.48xlarge"),
        (["--nod", "n"], "No such option"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["agent", *arguments])

    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bad_address_is_told(tmp_path: Path) -> None:
    from bayplan.cli.up import kubeconfig_text

    config = tmp_path / "kubeconfig"
    config.write_text(kubeconfig_text("http://127.0.0.1:1"))
    arguments = ["agent", "--node", "n", "--devices", "nvidia=1", "--kubeconfig", str(config)]
    result = CliRunner().invoke(main, [*arguments, "--listen", "nowhere"])
    assert result.exit_code == 2
    assert "is not an address" in result.stderr


def test_the_inventory_is_printed() -> None:
    arguments = ["agent", "--devices", "nvidia=1x8GiB", "--print-inventory"]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0
    assert json.loads(result.stdout)["classes"]["nvidia"]["devices"][0]["memoryMib"] == 8192


def test_the_agent_runs_without_numpy() -> None:
    program = """
import sys
sys.modules["numpy"] = None
sys.argv = ["bayplan", "agent", "--devices", "nvidia=1", "--print-inventory"]
import bayplan.agent.service, bayplan.agent.nvml, bayplan.agent.neuron
from bayplan.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nvidia-0" in done.stdout


# ---- Neuron, as its driver shows it


class Machine:
    """The files of a machine, and what is found there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = NeuronSource(VENDORS.classes["neuron"], root)
        (root / "dev").mkdir()

    def has(self, *indexes: int, cores: str = "2") -> None:
        shutil.rmtree(self.root / "dev", ignore_errors=True)
        for i in indexes:
            self.write(f"dev/neuron{i}", "")
            self.write(f"sys/devices/virtual/neuron_device/neuron{i}/core_count", cores)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, machine: str | None = "") -> Devices:
        return self.source.discover(machine).classes["neuron"]


def test_neuron_devices_of_a_machine_that_is_known_by_its_type(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(*range(16), cores="8\n")  # of the silicon; they are used as four
    trn2 = ListedSource(["neuron=trn2.48xlarge"], VENDORS).discover().classes["neuron"]

    assert machine.found("trn2.48xlarge") == trn2
    assert machine.found("trn1.32xlarge").devices[0].cores == 2
    machine.write("sys/class/dmi/id/product_name", "trn2.48xlarge\n")
    assert machine.found(None) == machine.found("trn1.32xlarge") == trn2
    named = NeuronSource(VENDORS.classes["neuron"], tmp_path, "trn1.32xlarge")
    assert {each.cores for each in named.discover().classes["neuron"].devices} == {2}


def test_neuron_devices_of_a_machine_that_nobody_knows(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(1, 0, 10, cores="8\n")
    for other in ("neuron_mapper", "neuron01", "xneuron2", "neuron3x"):
        machine.write(f"dev/{other}", "")
    with pytest.raises(NodeNotSeen):
        machine.found(None)

    found = machine.found("trn9.large")

    assert found == Devices(tuple(Device(str(i), i, cores=8) for i in (0, 1, 10)))
    for cores in ("", "0", "seventeen", "17", "\u0661"):
        machine.has(0, cores=cores)
        with pytest.raises(BadInventory, match="--instance-type"):
            machine.found()


def test_a_neuron_device_whose_file_is_not_there_is_unhealthy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def health(kind: str) -> str:
        return "".join("+" if each.healthy else "-" for each in machine.found(kind).devices)

    machine = Machine(tmp_path)
    machine.has(0, 1, 3, 4, 5)
    assert health("inf2.24xlarge") == health("inf2.24xlarge") == "++-+++"
    assert caplog.messages == ["no files of neuron devices 2"]
    machine.has(*range(6))
    assert health("inf2.24xlarge") == "++++++"
    machine.has()
    assert health("inf2.24xlarge") == health("") == "------"
    assert {device.cores for device in machine.found("").devices} == {2}
    machine.has(0, 1, 2)
    assert health("") == "+++---"


def test_more_neuron_devices_than_can_be_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(*range(33), cores="8")
    with pytest.raises(BadInventory, match="more than 256"):
        machine.found()


def test_a_machine_without_neuron_devices_is_asked_by_nvml_and_only_such_a_one(
    tmp_path: Path,
) -> None:
    cards = Inventory({"nvidia": Devices((Device("GPU-0", 0),))})
    asked: list[str | None] = []

    class Cards:
        def discover(self, machine: str | None = "") -> Inventory:
            asked.append(machine)
            return cards

    machine = Machine(tmp_path)
    source = MachineSource(machine.source, Cards())
    assert source.discover(None) == cards
    shutil.rmtree(tmp_path / "dev")
    assert source.discover(None) == cards
    machine.write("dev/null", "")
    machine.has(0)
    assert set(source.discover("inf2.xlarge").classes) == {"neuron"}
    assert asked == [None, None]


def test_the_command_finds_neuron_devices(tmp_path: Path) -> None:
    Machine(tmp_path).has(0)
    arguments = ["agent", "--root", str(tmp_path), "--print-inventory"]
    for kind, cores in (("inf1.xlarge", 4), ("inf2.xlarge", 2)):
        result = CliRunner().invoke(main, [*arguments, "--instance-type", kind])
        assert result.exit_code == 0
        (device,) = json.loads(result.stdout)["classes"]["neuron"]["devices"]
        assert (device["id"], device["cores"]) == ("0", cores)


# ---- NVML


class NvmlError(Exception):
    pass


class FakeNvml:
    """The driver's library as pynvml wraps it: cards 0 and 1 share two NVLinks, 2 is apart."""

    NVMLError = NvmlError
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_GPU_RECOVERY_ACTION_NONE = 0

    def __init__(self, cards: int = 3) -> None:
        self.cards = cards
        self.lost: set[int] = set()
        self.actions: dict[int, int] = {}
        self.bad_rows: set[int] = set()
        self.switched = False

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        if i in self.lost:
            raise NvmlError("GPU is lost")
        return i

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}"

    def nvmlDeviceGetName(self, card: int) -> bytes:
        return b"H200"

    def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
        return SimpleNamespace(total=(1000 << 20) + 5)

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(domain=0, bus=0x3B + card, device=0)

    def nvmlDeviceGetFieldValues(self, card: int, fields: list[int]) -> list[Any]:
        if card not in self.actions:
            return [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=9))]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.actions[card]))]

    def nvmlDeviceGetRemappedRows(self, card: int) -> tuple[int, int, int, int]:
        if card == 2:
            raise NvmlError("Not Supported")
        return 0, 0, 0, int(card in self.bad_rows)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 30 if 2 in (one, other) else 10

    def nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if link >= 3:
            raise NvmlError("Not Supported")
        return int(self.switched or (card < 2 and link < 2))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: int, link: int) -> int:
        return 2 if self.switched else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> Any:
        return self.nvmlDeviceGetPciInfo(1 - card)


def test_nvml_tells_memory_numa_and_links(tmp_path: Path) -> None:
    (tmp_path / "0000:3c:00.0").mkdir()
    (tmp_path / "0000:3c:00.0" / "numa_node").write_text("1\n")
    library = FakeNvml()

    found = ask(library, tmp_path)

    assert found.devices[1] == Device("GPU-1", 1, 1000, 1, True, "H200")
    assert [device.numa for device in found.devices] == [-1, 1, -1]
    assert found.links == ((0, 7, 2), (7, 0, 2), (2, 2, 0))
    library.switched = True
    assert ask(library, tmp_path).links == ((0, 8, 8), (8, 0, 8), (8, 8, 0))
    assert ask(FakeNvml(1), tmp_path).links == ()


def test_health_is_the_drivers_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    library = FakeNvml()
    library.actions = {0: 0, 1: 1}
    assert [device.healthy for device in ask(library).devices] == [True, False, True]
    assert "GPU-1 is unhealthy: the driver asks for recovery action 1" in capsys.readouterr().err
    library.actions, library.bad_rows = {}, {0}
    assert [device.healthy for device in ask(library).devices] == [False, True, True]
    library.lost = {1}
    assert [device.id for device in ask(library).devices] == ["GPU-0", "GPU-2"]


class Script:
    """What the agent runs in the place of NVML."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "nvml.py"
        self.source = NvmlSource((sys.executable, str(self._file)), answer_s=5.0)

    def says(self, text: str, status: int = 0) -> None:
        self._file.write_text(f"import sys\nprint({text!r})\nsys.exit({status})")

    def warns(self, text: str) -> None:
        print = f"\nimport sys\nsys.stderr.write({text + chr(10)!r})"
        self._file.write_text(self._file.read_text().replace("import sys", print, 1))

    def finds(self, *cards: int) -> None:
        devices = Devices(tuple(Device(f"GPU-{i}", i, 1000) for i in cards))
        self.says(write_inventory(Inventory({"nvidia": devices})))

    def health(self) -> dict[str, bool]:
        devices = self.source.discover().classes["nvidia"].devices
        return {device.id: device.healthy for device in devices}


def test_a_card_that_is_lost_is_unhealthy_until_it_is_back(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.finds(0, 1)
    assert script.health() == {"GPU-0": True, "GPU-1": True}
    script.finds(0)
    assert script.health() == {"GPU-0": True, "GPU-1": False}
    assert script.health() == {"GPU-0": True, "GPU-1": False}
    script.finds(0, 2)
    assert script.health() == {"GPU-0": True, "GPU-1": False, "GPU-2": True}
    script.finds(0, 1, 2)
    assert script.health() == {"GPU-0": True, "GPU-1": True, "GPU-2": True}


def test_a_driver_that_goes_away_leaves_unhealthy_cards(tmp_path: Path) -> None:
    script = Script(tmp_path)
    for text, status, why in (
        ("NVML: Driver Not Loaded", 1, "NVML: Driver Not Loaded; --inventory or"),
        ("", 3, "NVML: status 3"),
        ("{", 0, "NVML: "),
    ):
        script.says(text, status)
        with pytest.raises(BadInventory, match=why):
            script.source.discover()
    script.finds(0)
    assert script.health() == {"GPU-0": True}
    script.says("NVML: Driver Not Loaded", 1)
    with pytest.raises(BadInventory, match=r"Not Loaded$"):  # once may be chance
        script.source.discover()
    assert script.health() == {"GPU-0": False}
    script.finds(0)
    assert script.health() == {"GPU-0": True}


def test_cards_that_the_driver_counts_anew_keep_their_indexes(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.finds(0, 1, 2)
    script.health()
    left = Devices((Device("GPU-0", 0, 1000), Device("GPU-2", 1, 1000)))
    script.says(write_inventory(Inventory({"nvidia": left})))

    found = script.source.discover()

    assert read_inventory(write_inventory(found)) == found
    assert [(card.id, card.healthy) for card in found.classes["nvidia"].devices] == [
        ("GPU-0", True),
        ("GPU-1", False),
        ("GPU-2", True),
    ]


def test_garbage_in_the_place_of_cards() -> None:
    def said(text: str) -> Inventory:
        write = f"import sys; sys.stdout.buffer.write({text})"
        return NvmlSource((sys.executable, "-c", write)).discover()

    with pytest.raises(BadInventory, match="NVML: "):
        said("bytes([0xff, 0xfe])")
    assert said("""b'{"v": 1, "classes": {}}'""") == Inventory({"nvidia": Devices(())})


def test_what_stays_wrong_with_a_card_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(tmp_path)
    script.finds(0)
    script.warns("NVML: GPU-0 is unhealthy: why")
    for _ in range(3):
        script.health()
    assert caplog.messages == ["NVML: GPU-0 is unhealthy: why"]


def test_one_question_that_hangs_in_the_driver_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process inside the driver cannot be killed; each would stay for good."""
    marks = tmp_path / "marks"
    marks.mkdir()
    mark = f"import os, pathlib; pathlib.Path({str(marks)!r}, str(os.getpid())).touch(); "
    hangs = NvmlSource((sys.executable, "-c", f"{mark}import signal; signal.pause()"), 0.5)
    started: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: started.append(self))

    with pytest.raises(BadInventory, match="no answer"):
        hangs.discover()
    for _ in range(3):
        with pytest.raises(BadInventory, match="still hangs in the driver"):
            hangs.discover()

    assert len(started) == len(list(marks.iterdir())) == 1
    started[0].terminate()
    started[0].wait()
    with pytest.raises(BadInventory, match="no answer"):
        hangs.discover()
    started[1].terminate()
    started[1].wait()


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    hangs = NvmlSource((sys.executable, "-c", "import signal; signal.pause()"), answer_s=0.5)
    with pytest.raises(BadInventory, match=r"no answer within 0\.5 s"):
        hangs.discover()
    with pytest.raises(BadInventory, match="No such file"):
        NvmlSource(("/nowhere",)).discover()


def test_without_the_library_the_module_says_so() -> None:
    """No machine that runs the tests is expected to have a card."""
    nothing = (
        "import sys; sys.modules['pynvml'] = None; from bayplan.agent.nvml import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", nothing], capture_output=True, text=True)
    assert done.stdout == "NVML needs the package nvidia-ml-py, which bayplan[agent] brings\n"
