"""The journal's files: what is in them, what is never in them, and what happens when they fail."""

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.budgets import Budget
from bayplan.core.model.devices import Held
from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.groups import PodGroup
from bayplan.core.model.numa import Topology, Zone
from bayplan.core.model.partitions import Partition
from bayplan.core.model.pods import Gang, Pod, RowKey, Worker
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.model.utilisation import DeviceUse, NodeUse
from bayplan.core.model.verdicts import Refusal, Tally
from bayplan.core.model.volumes import Claim, StorageClass, Volume
from bayplan.kube.read import Reader
from bayplan.scheduler.journal import FORMAT, Journal, Outcome, outcomes
from bayplan.scheduler.recording import Recording
from bayplan.scheduler.snapshot import EVENTS
from bayplan.testing import world

MOST_US = 10.0  # per event, in a quiet moment


class Told(Journal):
    """A journal with an engine of its own and a clock that stands still."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.said: list[str] = []
        super().__init__(path, [ProfileConfig()], report=self.said.append, **settings)
        self.wall = lambda: 1_700_000_000.0
        self.engine = Engine()
        self.open(self.engine, 0.0)

    def tell(self, *events: on.Event) -> None:
        for event in events:
            self.step(event, 0.0, self.engine.handle(event, 0.0))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def steps(path: Path) -> list[Any]:
    return [line for line in lines(path) if "n" in line]


# ---- what is in it


def test_a_file_begins_with_a_header_and_a_snapshot(tmp_path: Path) -> None:
    config = ProfileConfig("mine", {"admit": PluginSet(disabled=(Enabled("*"),))})
    journal = Journal(tmp_path / "j", [config])
    journal.wall = lambda: 1_700_000_000.0
    journal.open(Engine([Profile(config)]), 12.5)
    journal.close()

    header, *state = lines(journal.path)

    assert header["type"] == "header"
    assert (header["format"], header["now"], header["step"]) == (FORMAT, 12.5, 0)
    assert header["wall"] == "2023-11-14T22:13:20.000+00:00"
    assert header["version"]
    assert Recording(journal.path).header.profiles == [config]
    assert {line["type"] for line in state} == {"state"}
    assert state[-1]["complete"] is True


def test_a_line_says_what_happened_when_and_what_came_of_it(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j")
    journal.tell(on.NodeSeen(world.node("a", 1)))
    journal.tell(on.PodSeen(world.pod("p", 1)), on.PodSeen(world.pod("q", 1)), on.Tick())
    journal.close()

    first, *_, last = steps(journal.path)

    assert (first["n"], first["now"], first["on"], "do" in first) == (1, 0.0, "NodeSeen", False)
    assert (last["n"], last["on"], last["event"]) == (4, "Tick", {"limit": 1024, "day_s": 0.0})
    assert last["do"] == [
        {"do": "Bind", "pods": ["uid-p"], "node": "a"},
        {"do": "Refuse", "pods": ["uid-q"], "reasons": {"Insufficient nvidia.com/gpu": 1}},
    ]


def samples() -> dict[str, on.Event]:
    """One event of each type."""
    pod = world.pod("p", terms=world.terms(), gates=("g",), checkpoint_s=1.5, controlled=True)
    pod = replace(pod, gang=Gang("red/train", 2, ("rack",)))
    pod = replace(pod, worker=Worker("ElasticJob red/train", "u"))
    selector = Selector((Requirement("app", "In", ("x",)),))
    budget = Budget("red/b", "red", selector, 1, frozenset({"q", "r"}))
    zones = Topology("a", "restricted", "pod", (Zone("z0", 0, (("cpu", 2000),)),), written_s=1.5)
    events: list[on.Event] = [
        on.PodSeen(pod),
        on.PodGone("u"),
        on.PodUnreadable("u", "a"),
        on.NodeSeen(world.node("a", taints=world.tainted("t"))),
        on.NodeGone("a"),
        on.UseSeen("a", NodeUse(2, "Tesla K80", 12, 1, 16, (DeviceUse(1, 88, used_mib=512),))),
        on.NamespaceSeen("red", {"env": "prod"}),
        on.NamespaceGone("red"),
        on.BindDone("u"),
        on.BindFailed("u", "conflict"),
        on.KubeletRefused("a", ("cpu",)),
        on.ClaimSeen(Claim("red", "c", "1", access_modes=("ReadWriteOnce",))),
        on.ClaimGone("red/c"),
        on.VolumeSeen(Volume("v", zones=(("zone", ("z1", "z2")),))),
        on.VolumeGone("v"),
        on.StorageClassSeen(StorageClass("fast", True, "csi.example")),
        on.StorageClassGone("fast"),
        on.StorageClassesHidden(),
        on.DeviceClassSeen("gpu", "example.com/gpu"),
        on.DeviceClassGone("gpu"),
        on.BudgetSeen(budget),
        on.BudgetGone("red/b"),
        on.TopologySeen(zones),
        on.TopologyGone("a"),
        on.GroupSeen(PodGroup("scheduling.x-k8s.io", Gang("PodGroup red/g", 3), (("cpu", 1),), 1)),
        on.GroupGone("scheduling.x-k8s.io", "PodGroup red/g"),
        on.GrantSeen(Grant("ElasticJob red/j", 3, 2, pod, Confirmed(2, 1, (("a", 1),), "why"))),
        on.GrantGone("ElasticJob red/j"),
        on.ConfirmFailed("ElasticJob red/j"),
        on.VictimSpared("u", "forbidden"),
        on.EstateSeen(world.ipus(count=4), (Partition("bp-u", ("ag0.1",)),)),
        on.EstateLost("vipu:8090", "time-out"),
        on.PartitionMade("u", (Held("main", "graphcore.ai/ipu", "vipu:8090", ()),)),
        on.PartitionRefused("vipu:8090", 4),
        on.PartitionGone("vipu:8090", "bp-u"),
        on.PodExpected(pod, "n"),
        on.PodNotExpected("uid"),
        on.PlaceWanted(pod, ("n", "m")),
        on.BindAsked(pod, "n"),
        on.Tick(7),
    ]
    return {type(event).__name__: event for event in events}


@pytest.mark.parametrize("kind", get_args(on.Event), ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_was(kind: type, tmp_path: Path) -> None:
    """A new event needs a sample here, and a thought about the snapshot (snapshot.facts)."""
    event = samples()[kind.__name__]
    journal = Told(tmp_path / "j")
    journal.step(event, 3.0, [])
    journal.close()

    (told,) = Recording(journal.path).steps()

    assert (told.event, told.now, told.outcomes) == (event, 3.0, [])
    assert EVENTS[kind.__name__] is kind


def test_pods_that_share_a_refusal_are_written_once() -> None:
    one, other = (world.pod(name) for name in "ab")
    refusal = Refusal("m", {"full": Tally(3, ("n",))}, frozenset(), 1)
    alone = replace(refusal, tallies={}, message="a plugin refused")
    bind = do.Bind(do.Placement(one, "n"), 2)

    found = outcomes(
        [
            do.Refuse(one, refusal),
            do.Refuse(other, refusal),
            bind,
            do.Refuse(one, refusal),
            do.Refuse(one, alone),
            do.Preempt(one, "n", (other,)),
            do.Refuse(one, refusal, nominated="n"),
            do.Refuse(other, refusal, nominated=""),
            do.Refuse(one, refusal),
            do.Evict(other, "for the best"),
            do.Confirm("ElasticJob red/j", Confirmed(2, 1)),
            do.Park(one, "ValueError", "a long story"),
            do.Report("odd"),
        ]
    )

    assert found == [
        Outcome("Refuse", ("uid-a", "uid-b"), reasons={"full": 3}),
        Outcome("Bind", ("uid-a",), "n", 2),
        Outcome("Refuse", ("uid-a",), reasons={"full": 3}),
        Outcome("Refuse", ("uid-a",), text="a plugin refused"),
        Outcome("Preempt", ("uid-a",), "n", victims=("uid-b",)),
        Outcome("Refuse", ("uid-a",), nominated="n", reasons={"full": 3}),
        Outcome("Refuse", ("uid-b",), nominated="", reasons={"full": 3}),
        Outcome("Refuse", ("uid-a",), reasons={"full": 3}),
        Outcome("Evict", ("uid-b",), text="for the best"),
        Outcome("Confirm", ("ElasticJob red/j",), text="1 places of grant 2"),
        Outcome("Park", ("uid-a",), text="ValueError"),
        Outcome("Report", text="odd"),
    ]


# ---- what is never in it

WORDS = ("hunter2", "s3cr3t", "opensesame", "swordfish", "xyzzy", "passphrase")
SECRETIVE = {
    "metadata": {
        "name": "p",
        "namespace": "red",
        "uid": "u",
        "labels": {"app": "web"},
        "annotations": {"vault": "hunter2"},
        "managedFields": [{"manager": "hunter2"}],
    },
    "spec": {
        "schedulerName": "bayplan",
        "volumes": [{"name": "v", "secret": {"secretName": "passphrase"}}],
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "command": ["run", "--password=s3cr3t"],
                "args": ["opensesame"],
                "env": [{"name": "TOKEN", "value": "swordfish"}],
                "envFrom": [{"secretRef": {"name": "xyzzy"}}],
                "lifecycle": {"preStop": {"exec": {"command": ["s3cr3t"]}}},
                "resources": {"requests": {"cpu": "1"}},
            }
        ],
        "initContainers": [{"name": "i", "args": ["opensesame"], "env": [{"value": "hunter2"}]}],
    },
}


def test_environment_arguments_and_annotations_are_never_in_it(tmp_path: Path) -> None:
    source = msgspec.json.encode(SECRETIVE)
    assert all(word.encode() in source for word in WORDS)
    pod = Reader().pod(source)
    node = Reader().node(
        {"metadata": {"name": "n", "uid": "n", "annotations": {"key": "hunter2"}}, "status": {}}
    )
    journal = Told(tmp_path / "j", max_bytes=1, keep=9)  # so that it is in snapshots too
    journal.tell(on.NodeSeen(node), on.PodSeen(pod))
    for _ in range(20):
        journal.tell(on.Tick())
    journal.tell(on.NodeSeen(world.node("a")), on.Tick(), on.BindDone("u"))
    journal.close()

    assert journal.files > 1
    for file in tmp_path.iterdir():
        content = file.read_text()
        assert '"red"' in content or file.name == f"j.{journal.files - 1}"
        assert not [word for word in WORDS if word in content]


def test_a_failed_plugins_story_is_not_in_it(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j")
    journal.step(on.Tick(), 0.0, [do.Park(world.pod("p"), "KeyError", "File /home/me: hunter2")])
    journal.close()
    assert "hunter2" not in journal.path.read_text()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(Told(tmp_path / "j").path.stat().st_mode) == 0o600


# ---- files


def test_large_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j", max_bytes=4096, keep=2)
    for i in range(400):
        journal.tell(on.NodeSeen(world.node("a", i % 7)))
    journal.close()

    assert journal.files > 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j", "j.1", "j.2"]
    older, old, new = (Recording(tmp_path / name) for name in ("j.2", "j.1", "j"))
    numbers = [[told.n for told in recording.steps()] for recording in (older, old, new)]
    joined = [n for some in numbers for n in some]
    assert joined == list(range(joined[0], 401))
    assert new.header.step == numbers[1][-1]
    assert (tmp_path / "j.1").stat().st_size < 8192


def test_without_files_put_aside_only_the_newest_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"j.{number}").touch()  # from when more were kept
    journal = Told(tmp_path / "j", max_bytes=1, keep=0)
    for i in range(100):
        journal.tell(on.NodeSeen(world.node("a", i % 7)))
    assert journal.files > 3
    assert [file.name for file in tmp_path.iterdir()] == ["j"]


def test_a_snapshot_larger_than_the_limit_is_followed_by_as_much(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j", max_bytes=1, keep=50)
    for i in range(100):
        journal.tell(on.NodeSeen(world.node(f"n{i}")))
    journal.close()
    for file in tmp_path.iterdir():
        if file != journal.path:
            whole = file.read_bytes()
            snapshot = whole.index(b'{"type":"state","complete":true}\n')
            assert len(whole) > 1.9 * snapshot


def test_the_journal_of_the_run_before_is_put_aside(tmp_path: Path) -> None:
    Told(tmp_path / "j").close()
    second = Told(tmp_path / "j")
    second.tell(on.Tick())
    second.open(second.engine, 1.0)  # an engine that was built anew
    second.close()
    assert [len(steps(tmp_path / name)) for name in ("j", "j.1", "j.2")] == [0, 1, 0]


def test_lines_are_in_the_file_when_the_cycle_ends(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j")
    journal.tell(on.Tick())
    assert steps(journal.path) == []
    journal.flush()
    assert len(steps(journal.path)) == 1


# ---- trouble


def test_a_full_disk_switches_it_off_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Told(tmp_path / "j")
    write = os.write
    room = 30

    def little(file: int, content: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, content[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", little)
    journal.tell(on.Tick())
    for _ in range(3):
        journal.flush()
        journal.tell(on.Tick())
    journal.close()

    assert not journal.is_on
    assert journal.errors == 1
    assert journal.said == [f"the journal {tmp_path}/j is switched off: No space left on device"]
    recording = Recording(journal.path)  # what was written can be read
    assert list(recording.steps()) == []
    assert recording.cut_off


def test_a_full_disk_while_a_file_begins_switches_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Told(tmp_path / "j", max_bytes=1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for i in range(50):
        journal.tell(on.NodeSeen(world.node("a", i)))
    assert (journal.is_on, journal.errors, len(journal.said)) == (False, 1, 1)


@pytest.mark.parametrize("where", ["no/such/folder/j", ""])
def test_a_place_that_cannot_be_written_stops_nothing(where: str, tmp_path: Path) -> None:
    journal = Told(tmp_path / where)
    journal.tell(on.Tick())
    journal.flush()
    journal.close()
    assert (journal.is_on, journal.errors, len(journal.said)) == (False, 1, 1)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j")
    journal = Told(tmp_path / "j")
    assert journal.said == [
        f"the journal {tmp_path}/j is switched off: it is there, and is no file"
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["j"]


def test_what_cannot_be_written_down_stops_nothing(tmp_path: Path) -> None:
    journal = Told(tmp_path / "j")
    journal.step(on.BindFailed("u", object()), 0.0, [])  # type: ignore[arg-type]
    assert (journal.is_on, journal.errors, len(journal.said)) == (False, 1, 1)


# ---- cost


def test_an_event_costs_little(tmp_path: Path) -> None:
    """The best of many short runs: what the machine does meanwhile is not the journal's."""
    journal = Told(tmp_path / "j", max_bytes=1 << 30)
    requests = (("cpu", 1000), ("memory", 1 << 30), ("nvidia.com/gpu", 1))
    pod = Pod("uid-1234", "team", "train-0", {"app": "train", "index": "17"}, RowKey(requests))
    seen, bound = on.PodSeen(pod), [do.Bind(do.Placement(pod, "node-17"))]
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter()
        for _ in range(100):
            journal.step(seen, 1.0, [])
            journal.step(on.Tick(), 1.0, bound)
        journal.flush()
        best = min(best, (time.perf_counter() - started) / 200)
    assert best * 1e6 < MOST_US
