"""Whatever happened: an engine rebuilt from any file of its journal decides what the first did."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from bayplan.cli.main import main
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.budgets import Budget
from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.partitions import Partition
from bayplan.core.model.pods import Gang, Pod, Worker
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.model.utilisation import DeviceUse, NodeUse, PodUse
from bayplan.core.model.verdicts import EventKind, Refusal
from bayplan.core.model.volumes import Claim, StorageClass
from bayplan.core.plugins.hooks import Candidate
from bayplan.core.plugins.resources import NodeResourcesFit
from bayplan.core.state import cluster, labels
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.laws import broken, picture
from bayplan.core.state.waiting import Group, Waiter, Waiting
from bayplan.scheduler.journal import Journal, outcomes
from bayplan.scheduler.packing import pack, unpack
from bayplan.scheduler.recording import Player, Recording
from bayplan.scheduler.replay import Span, check, each, replay, settle
from bayplan.scheduler.snapshot import State, restore, take
from bayplan.testing import world
from tests.conftest import differences
from tests.law.test_laws import NAMES, Laws

SELECTOR = Selector((Requirement("app", "In", ("web",)),))
SHARE = {"order": PluginSet((Enabled("NamespaceShare"),), (Enabled("PrioritySort"),))}
CONFIGS = (
    ProfileConfig(),
    ProfileConfig(plugins=SHARE),
    ProfileConfig(picker=f"{__name__}:moody"),
)


def moody(pod: Pod, candidates: Sequence[Candidate]) -> int:
    """A picker that no replay could follow by calling it: it counts its calls."""
    moody.calls += 1  # type: ignore[attr-defined]
    if moody.calls % 5 == 0:  # type: ignore[attr-defined]
        raise ZeroDivisionError
    return int(moody.calls % len(candidates))  # type: ignore[attr-defined]


moody.calls = 0  # type: ignore[attr-defined]


def copied(engine: Engine, profiles: list[Profile]) -> Engine:
    """The engine, through bytes and back."""
    state = State()
    for part in take(engine):
        state.add(msgspec.json.decode(msgspec.json.encode(part), type=State))
    return restore(state, profiles)


def queue_of(engine: Engine) -> Any:
    """The queue as values."""

    def waiter(one: Waiter) -> Any:
        fields = ("pod", "sort", "arrival", "attempts", "rested_at", "told", "generation")
        concerning = {term.key for term in one.concerning}
        fresh = one.generation == engine.cluster.terms.generation
        own = None if one.own is None else one.own.terms
        return (*(getattr(one, name) for name in fields), own, fresh and concerning)

    queue = engine.waiting
    return {
        "pods": {uid: waiter(one) for uid, (one, _) in queue.pods.items()},
        "groups": [
            (
                g.key,
                list(g.members),
                list(g.newcomers),
                (g.told, g.refusal, g.announced, g.sleeps_until, g.alarm_at, g.since),
                sorted(g.awake),
                sorted(g.resting),
            )
            for g in queue.groups.values()
        ],
        "ready": sorted(entry for entry in queue._ready if entry[2] in queue.groups),
        "timers": sorted(entry for entry in queue._timers if entry[2] in queue.groups),
        "by kind": {kind: list(keys) for kind, keys in queue._by_kind.items() if keys},
        "counts": (queue.asleep, queue._ticket),
        "assumed": {uid: waiter(one)[:6] for uid, one in engine.assumed.items()},
        "held": engine.held,
        "unreadable": engine.unreadable,
        "nominations": (
            engine.nominations.owners,
            engine.nominations.doomed,
            engine.nominations.spared,
        ),
        "promises": (
            engine.promises.grants,
            {key: engine.promises.of(key) for key in engine.promises.places},
            engine.promises.told,
            engine.promises.count,
            engine.promises.is_due,
            engine.promises.doubted,
        ),
        "order": vars(engine.order),
    }


def cluster_of(engine: Engine) -> Any:
    """The whole state of the cluster, with taints as the node says them, not as codes."""
    _, shown = picture(engine.cluster)
    for name in ("taints", "taint_sets"):
        del shown[name]
    return shown


JOBS = ("ElasticJob red/a", "ElasticJob red/b")


class Histories(Laws):
    """The law machine's events, with a journal that is rotated whenever chance wants it."""

    @initialize(config=st.sampled_from(CONFIGS), most=st.integers(1, 8), waste=st.integers(0, 9))
    def start(self, config: ProfileConfig, most: int, waste: int) -> None:
        labels.WASTE = cluster.WASTE = waste  # type: ignore
        self.config = config
        self.engine = Engine([Profile(config)], max_in_flight=most)
        self.now, self.made = 0.0, 0
        self.known: dict[str, Pod] = {}
        self.binding: dict[str, str] = {}
        self.told: list[list[do.Effect]] = []
        self.folder = Path(tempfile.mkdtemp())
        self.journal = Journal(self.folder / "j", [config], max_bytes=1 << 30, keep=1000)
        self.journal.open(self.engine, self.now)
        if waste % 2:
            self.tell(on.StorageClassSeen(StorageClass("waits", True, "csi.example")))
            for name in "ab":
                self.tell(on.ClaimSeen(Claim("red", name, "1", storage_class="waits")))

    def tell(self, event: on.Event) -> None:
        effects = self.engine.handle(event, self.now)
        self.journal.step(event, self.now, effects)
        self.told.append(effects)
        for effect in effects:
            assert not isinstance(effect, do.Park), effect
            if isinstance(effect, do.Bind):
                self.binding[effect.placement.pod.uid] = effect.placement.node

    @rule()
    def rotate(self) -> None:
        self.journal._limit = 0

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=3, max_size=5))
    def lose_nodes(self, names: list[str]) -> None:
        """In any order, so that vacant rows are a stack like any other."""
        for name in names:
            self.tell(on.NodeGone(name))

    @rule(gates=st.booleans(), node=st.sampled_from(("", "", *NAMES)))
    def see_gated(self, gates: bool, node: str) -> None:
        pod = world.pod("gated", gates=("g",) if gates else (), node=node)
        self.known[pod.uid] = pod
        self.tell(on.PodSeen(pod))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def change_priority(self, data: st.DataObject, priority: int) -> None:
        """It keeps its place in the queue, and leaves entries behind in its group."""
        pod = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        self.known[pod.uid] = replace(pod, priority=priority)
        self.tell(on.PodSeen(self.known[pod.uid]))

    @rule(name=st.sampled_from(("red/a", "red/b")), allowed=st.none() | st.integers(0, 2))
    def see_budget(self, name: str, allowed: int | None) -> None:
        if allowed is None:
            self.tell(on.BudgetGone(name))
        else:
            self.tell(on.BudgetSeen(Budget(name, "red", SELECTOR, allowed, frozenset("pq"))))

    @rule(name=st.sampled_from(NAMES), percent=st.none() | st.integers(0, 100))
    def see_use(self, name: str, percent: int | None) -> None:
        use = None if percent is None else NodeUse(devices=(DeviceUse(0, percent),))
        self.tell(on.UseSeen(name, use))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), percent=st.integers(0, 100))
    def see_pods_use(self, data: st.DataObject, percent: int) -> None:
        pod = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        self.known[pod.uid] = replace(pod, use=PodUse(percent))
        self.tell(on.PodSeen(self.known[pod.uid]))

    @rule(key=st.sampled_from(JOBS), places=st.none() | st.integers(0, 4), said=st.integers(0, 4))
    def see_grant(self, key: str, places: int | None, said: int) -> None:
        if places is None:
            self.tell(on.GrantGone(key))
            return
        self.made += 1
        shape = world.pod("", 1, uid=key, worker=Worker(key), cpu=1000 * (places + 1))
        said_now = Confirmed(self.made - said % 2, said)
        grant = Grant(key, self.made, places, shape, said_now, uid=str(places % 2))
        self.tell(on.GrantSeen(grant))

    @rule(key=st.sampled_from(JOBS), at=st.integers(0, 3), job=st.sampled_from(("", "0", "1")))
    def see_worker(self, key: str, at: int, job: str) -> None:
        pod = world.pod(f"{key[-1]}-{at}", 1, worker=Worker(key, job))
        if pod.uid not in self.known:
            self.known[pod.uid] = pod
            self.tell(on.PodSeen(pod))

    @rule()
    def copy(self) -> None:
        profile = Profile(replace(self.config, picker=None))
        again = copied(self.engine, [profile])
        assert broken(again.cluster) == []
        assert queue_of(again) == queue_of(self.engine)
        found = differences(cluster_of(self.engine), cluster_of(again))
        assert "; ".join(found) == ""

    # The laws themselves are proven elsewhere.
    try_and_drop = ask = None  # type: ignore[assignment]
    the_laws_hold = who_sleeps_could_not_be_helped = None  # type: ignore[assignment]

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        self.journal.close()
        assert self.journal.errors == 0
        calls = moody.calls  # type: ignore[attr-defined]
        try:
            files = sorted(self.folder.iterdir())
            assert len(files) == self.journal.files
            for file in files:
                self.check_file(file)
        finally:
            shutil.rmtree(self.folder)
        assert moody.calls == calls  # type: ignore[attr-defined]

    def check_file(self, file: Path) -> None:
        recording = Recording(file)
        player = Player(recording)
        last = recording.header.step
        for told in recording.steps():
            assert told.n == last + 1
            last = told.n
            assert player.hear(told) == self.told[told.n - 1], (file.name, told.n)
        found = replay(recording)
        assert found.differences == []
        assert found.events == last - recording.header.step
        if file.name == "j":
            assert last == len(self.told)
            assert queue_of(player.engine)["pods"] == queue_of(self.engine)["pods"]


EXAMPLES = 2_000 if os.environ.get("BAYPLAN_PROVE") else 60
TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=int(os.environ.get("BAYPLAN_EXAMPLES") or EXAMPLES),
    stateful_step_count=40,
    phases=tuple(Phase) if os.environ.get("BAYPLAN_SHRINK") != "no" else (Phase.generate,),
    deadline=None,
    derandomize="BAYPLAN_PROVE" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


# ---- what a snapshot must hold

RESTORED = {
    Engine: {"cluster", "waiting", "held", "assumed", "claiming", "unreadable", "order"}
    | {"max_in_flight", "patience", "offers", "nominations", "promises", "keeper"}
    | {"profiles", "verdicts", "picking", "plugin_errors", "_reports"}  # made anew
    | {"preemption", "_deciding", "_facts", "_nodes"},
    Waiting: {"rests", "pods", "groups", "asleep", "_ready", "_timers", "_by_kind", "_ticket"}
    | {"helped"},  # from 0: grants that are short are then tried once more, in vain
    Group: {"key", "members", "awake", "resting", "refusal", "told", "newcomers"}
    | {"announced", "sleeps_until", "alarm_at", "since", "partial", "refused"}
    | {"kept", "awaits", "hopeless"},
    Waiter: {"pod", "sort", "arrival", "own", "concerning", "generation", "attempts"}
    | {"rested_at", "told"},
}


@pytest.mark.parametrize("thing", [Engine(), Waiting(), Group(()), Waiter])
def test_what_is_restored_is_written_down(thing: Any) -> None:
    """A new name is a decision: does a snapshot need it? The cluster is compared as a whole."""
    if thing is Waiter:
        assert set(Waiter.__struct_fields__) == RESTORED[Waiter]
    else:
        ours = vars(type(thing)).items()  # names that stand in the class until they change
        named = {name for name, value in ours if name[0] != "_" and not callable(value)}
        named = {name for name in named if not isinstance(vars(type(thing))[name], property)}
        assert set(vars(thing)) | named == RESTORED[type(thing)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.5,
        float("inf"),
        (1, ("a", True), frozenset({EventKind.POD_GONE})),
        {("a", 1): [2.0], "b": {1, 2}},
        Refusal("m", {}, frozenset({EventKind.NODE_ADDED}), 3),
        Counter({(0, "red"): 2}),
    ],
    ids=repr,
)
def test_values_of_the_core_come_back_as_they_were(value: Any) -> None:
    again = unpack(msgspec.json.decode(msgspec.json.encode(pack(value))))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "value", [object(), Path(), world.World, OrderedDict()], ids=lambda value: type(value).__name__
)
def test_what_is_not_of_the_core_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        pack(value)


@pytest.mark.parametrize(
    "name", ["model.pods:replace", "engine.engine:Engine", "state.waiting:REST"]
)
def test_a_journal_names_values_only(name: str) -> None:
    with pytest.raises(TypeError, match="no value"):
        unpack([name, {}])


# ---- the commands


def told(journal: Journal, engine: Engine, *events: on.Event, now: float = 0.0) -> None:
    for event in events:
        journal.step(event, now, engine.handle(event, now))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two nodes, three pods that fit and one that does not; then room for it."""
    config = ProfileConfig()
    engine, journal = Engine([Profile(config)]), Journal(tmp_path / "journal", [config])
    journal.open(engine, 0.0)
    told(journal, engine, *(on.NodeSeen(world.node(name, 4)) for name in "ab"))
    told(journal, engine, *(on.PodSeen(world.pod(f"p{i}", gpus=2)) for i in range(3)))
    told(journal, engine, on.PodSeen(world.pod("large", gpus=8)), on.Tick(), now=1.0)
    told(journal, engine, *(on.BindDone(f"uid-p{i}") for i in range(3)), now=2.0)
    told(journal, engine, on.NodeSeen(world.node("c", 8)), on.Tick(), now=3.0)
    journal.close()
    return journal.path


def run(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(*args: object) -> str:
    result = run(*args)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr.removeprefix("Error: ").strip()


def altered(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))
    return path


def test_a_replay_says_what_there_was_and_that_nothing_differs(recorded: Path) -> None:
    result = run("replay", recorded)
    assert result.stdout == "12 events, 4 binds, 1 refusals\nno decision differs\n"
    assert result.exit_code == 0


def test_a_decision_that_differs_is_shown(recorded: Path) -> None:
    bind = '{"do":"Bind","pods":["uid-p0"],"node":"a"}'
    altered(recorded, bind, bind.replace('"a"', '"b"'))
    result = run("replay", recorded)
    assert result.exit_code == 1
    assert result.stdout == (
        "12 events, 4 binds, 1 refusals\n1 decision differs\n\n"
        "EVENT  POD         THEN  NOW\n"
        "    7  default/p0  b     a\n"
    )
    (difference,) = json.loads(run("replay", recorded, "-o", "json").stdout)["differences"]
    assert difference == {"event": 7, "pod": "default/p0", "then": "b", "now": "a"}


def test_other_reasons_and_other_orders_are_differences(recorded: Path) -> None:
    altered(recorded, '"reasons":{"Insufficient nvidia.com/gpu":2}', '"reasons":{"other":2}')
    (difference,) = replay(Recording(recorded)).differences
    assert (difference.then, difference.now) == (
        "waits: 2 other",
        "waits: 2 Insufficient nvidia.com/gpu",
    )
    altered(recorded, '"reasons":{"other":2}', '"reasons":{"Insufficient nvidia.com/gpu":2}')
    binds = [f'{{"do":"Bind","pods":["uid-p{i}"],"node":"' for i in range(2)]
    first, second = (f'{bind}{node}"}}' for bind, node in zip(binds, placed(recorded), strict=True))
    altered(recorded, f"{first},{second}", f"{second},{first}")
    (difference,) = replay(Recording(recorded)).differences
    assert difference.now == "in another order"


def test_a_preemption_that_is_not_made_again_is_shown_with_the_names_of_pods(
    recorded: Path,
) -> None:
    waits = '{"do":"Refuse","pods":["uid-large"],'
    preempts = '{"do":"Preempt","pods":["uid-large"],"node":"a","victims":["uid-p0","uid-p1"]}'
    altered(recorded, waits, f'{preempts},{waits}"nominated":"a",')
    (difference,) = replay(Recording(recorded)).differences
    reasons = "waits: 2 Insufficient nvidia.com/gpu"
    assert difference.then == (f"preempts default/p0, default/p1 on a; {reasons}, nominated a")
    assert difference.now == reasons


def placed(path: Path) -> list[str]:
    """The nodes of the first two pods."""
    (step,) = [told for told in Recording(path).steps() if told.n == 7]
    return [outcome.node for outcome in step.outcomes[:2]]


def test_a_span_of_events(recorded: Path) -> None:
    assert run("replay", recorded, "--from", "8").stdout.startswith("5 events, 1 binds, 0 refusals")
    assert replay(Recording(recorded), Span(7, 7)).binds == 3
    assert "--until 3 is before --from 7" in error_of(
        "replay", recorded, "--from", "7", "--until", "3"
    )


SPREAD = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
profiles:
- schedulerName: bayplan
  plugins:
    score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit}]}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: LeastAllocated, resources: [{name: nvidia.com/gpu, weight: 1}]}
"""


def test_what_other_profiles_would_have_decided(recorded: Path, tmp_path: Path) -> None:
    config = tmp_path / "spread.yaml"
    config.write_text(SPREAD)
    result = run("replay", recorded, "--config", config)
    assert result.exit_code == 0  # the differences are the answer
    assert "12 events, 4 binds, 1 refusals; now 4 binds, 1 refusals" in result.stdout
    assert re.search(r" 7  default/p1 +a +b\n", result.stdout)

    config.write_text(SPREAD.replace("schedulerName: bayplan", "schedulerName: other"))
    result = run("replay", recorded, "--config", config)
    assert "now 0 binds" in result.stdout
    assert re.search(r"default/large +c +nothing\n", result.stdout)
    assert "no such field" in error_of("replay", recorded, "--config", with_typo(config))


def with_typo(config: Path) -> Path:
    return altered(config, "pluginConfig", "pluginConfigs")


def test_binds_that_only_the_other_profiles_make_do_not_fill_the_flight(tmp_path: Path) -> None:
    config = ProfileConfig(plugins={"admit": PluginSet(disabled=(Enabled("*"),))})
    default = ProfileConfig()
    engine = Engine([Profile(default)], max_in_flight=2)
    journal = Journal(tmp_path / "j", [default])
    journal.open(engine, 0.0)
    told(journal, engine, on.NodeSeen(world.node("a")))
    told(journal, engine, *(on.PodSeen(world.pod(f"p{i}", gates=("g",))) for i in range(5)))
    told(journal, engine, *([on.Tick()] * 5))
    journal.close()

    found = replay(Recording(journal.path), under=[config])

    assert (found.binds, found.binds_now) == (0, 5)
    assert {difference.now for difference in found.differences} == {"a"}


def test_a_last_line_that_was_cut_off_is_left_out(recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:-20])
    result = run("replay", recorded)
    assert result.exit_code == 0
    assert result.stdout.startswith("11 events, 3 binds, 1 refusals\nthe last line is cut off")
    assert run("check", recorded).stdout.startswith("the laws hold: 11 events\nthe last line")


def test_what_is_no_journal_is_one_clear_line(recorded: Path, tmp_path: Path) -> None:
    whole = recorded.read_bytes()
    lines = whole.splitlines(keepends=True)
    cases = {
        b"": "it is empty",
        b"{}\n": "it is no journal of Bayplan's",
        b"\xff\xfe\n": "it is no journal of Bayplan's",
        whole.replace(b'"format":2', b'"format":9', 1): "it has format 9, of version",
        b"".join(lines[:2]): f"its snapshot is cut off (the file before is {tmp_path}/journal.1)",
        b"".join(lines[:2])[:-9]: "its snapshot is cut off",
        whole.replace(b'"on":"Tick"', b'"on":"Tock"', 1): "this version knows no event Tock",
        whole.replace(b'"event":{"pod":{', b'"event":{"pud":{', 1): "PodSeen: Object missing",
        whole.replace(b'{"n":3,', b"{n:3,", 1): "line 7: JSON is malformed",
        whole.replace(b'"vacant":[]', b'"vacant":[7]', 1): "its snapshot cannot be used: KeyError",
    }
    for content, why in cases.items():
        recorded.write_bytes(content)
        for command in ("replay", "check"):
            assert why in error_of(command, recorded)
            assert str(recorded) in error_of(command, recorded)
    assert error_of("check", tmp_path / "none") == f"{tmp_path}/none: No such file or directory"


def test_a_picker_that_is_not_installed_is_not_missed(tmp_path: Path) -> None:
    config = ProfileConfig(picker=f"{__name__}:moody")
    engine, journal = Engine([Profile(config)]), Journal(tmp_path / "j", [config])
    journal.open(engine, 0.0)
    told(journal, engine, *(on.NodeSeen(world.node(name)) for name in "abc"))
    told(journal, engine, *(on.PodSeen(world.pod(f"p{i}")) for i in range(9)), on.Tick())
    journal.close()
    altered(journal.path, f'"{config.picker}"', '"not_there:pick"')

    assert replay(Recording(journal.path)).differences == []
    assert check(Recording(journal.path)).ok


def test_a_plugin_that_is_not_installed_is_one_clear_line(recorded: Path) -> None:
    plugins = '"plugins":{"filter":{"enabled":[{"name":"Mine","weight":null}],"disabled":[]}}'
    altered(recorded, '"plugins":{}', plugins)
    for command in ("replay", "check"):
        assert "no plugin Mine" in error_of(command, recorded)


# ---- the laws


def test_the_laws_hold(recorded: Path) -> None:
    result = run("check", recorded)
    assert (result.exit_code, result.stdout) == (0, "the laws hold: 12 events\n")
    assert json.loads(run("check", recorded, "-o", "json").stdout) == {"events": 12}
    assert "--every" in error_of("check", recorded, "--every", "0")
    assert "either a JOURNAL or --live" in error_of("check", recorded, "--live")


def test_the_first_broken_law_is_shown(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Cluster.place_on

    def forgets(self: Cluster, pod: Pod, row: int) -> None:
        place(self, pod, row)
        if pod.name == "p2":
            self.free[row] += 1

    monkeypatch.setattr(Cluster, "place_on", forgets)
    result = run("check", recorded)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == 'broken after event 7 Tick {"limit":1024,"day_s":0.0}'
    assert re.fullmatch(r"  free of [ab] is .*, not .*", second)
    seldom = json.loads(run("check", recorded, "--every", "10", "-o", "json").stdout)
    assert (seldom["ok"], seldom["event"], seldom["on"]) == (False, 10, "BindDone")
    assert check(Recording(recorded), every=100).event == 12  # at the end, at least


def test_an_event_that_cannot_be_applied_is_shown(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(Engine, "_confirm", fails)
    found = check(Recording(recorded))
    assert (found.ok, found.event, found.on) == (False, 8, "BindDone")
    assert found.broken == ["the event could not be applied: ZeroDivisionError: no"]
    (difference,) = replay(Recording(recorded)).differences
    assert (difference.event, difference.now) == (8, "failed: ZeroDivisionError: no")


def test_a_pod_that_was_placed_where_it_does_not_fit_is_shown(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeResourcesFit, "refuse", lambda *_: None)
    monkeypatch.setattr(NodeResourcesFit, "refuser", lambda *_: lambda view: None)
    found = check(Recording(recorded))
    assert found.event == 7
    assert re.fullmatch(r"[ab] lacks nvidia.com/gpu for default/.*large", found.broken[-1])


def test_a_journal_that_begins_while_victims_go(tmp_path: Path) -> None:
    """Each file is replayed by itself: the place is still the preemptor's, and the laws hold."""
    config = ProfileConfig()
    engine = Engine([Profile(config)])
    journal = Journal(tmp_path / "j", [config], keep=9)
    journal.open(engine, 0.0)
    low = [world.pod(f"low-{i}", gpus=1, node="a") for i in range(4)]
    told(journal, engine, on.NodeSeen(world.node("a", 4)), *map(on.PodSeen, low))
    told(journal, engine, on.PodSeen(world.pod("high", gpus=2, priority=5)), on.Tick())
    (victims,) = [
        outcome.victims
        for step in recorded_steps(journal)
        for outcome in step.outcomes
        if outcome.do == "Preempt"
    ]
    journal.open(engine, 1.0)  # rotated in the middle
    told(journal, engine, on.PodGone(victims[0]), on.PodSeen(world.pod("late", gpus=1)), now=2.0)
    told(journal, engine, on.Tick(), on.PodGone(victims[1]), now=3.0)
    told(journal, engine, on.Tick(), now=20.0)
    told(journal, engine, on.BindDone("uid-high"), on.Tick(), now=21.0)
    journal.close()

    assert len(victims) == 2
    for name in ("j.1", "j"):
        recording = Recording(tmp_path / name)
        assert replay(recording).differences == []
        assert check(recording).ok
    binds = [
        outcome.pods
        for step in Recording(tmp_path / "j").steps()
        for outcome in step.outcomes
        if outcome.do == "Bind"
    ]
    assert binds == [("uid-high",)]


def test_gangs_and_what_is_kept_for_them_are_in_a_snapshot() -> None:
    profile = Profile(ProfileConfig())
    engine = Engine([profile])
    low = [world.pod(f"low-{i}", gpus=1, node="a") for i in range(4)]
    engine.handle(on.NodeSeen(world.node("a", 4)), 0.0)
    for pod in low:
        engine.handle(on.PodSeen(pod), 0.0)
    seen: list[str] = []

    def arrive(name: str, gang: Gang, priority: int) -> None:
        member = replace(world.pod(name, gpus=1, priority=priority), gang=gang)
        engine.handle(on.PodSeen(member), 1.0)
        effects = engine.handle(on.Tick(), 1.0)
        seen.extend(type(effect).__name__ for effect in effects)
        again = copied(engine, [Profile(ProfileConfig())])
        assert queue_of(again) == queue_of(engine)
        assert "; ".join(differences(cluster_of(engine), cluster_of(again))) == ""
        assert again.handle(on.Tick(), 9.0) == copied(engine, [profile]).handle(on.Tick(), 9.0)

    for i in range(2):
        arrive(f"few-{i}", Gang("default/few", 3), 0)  # incomplete
    for i in range(2):
        arrive(f"urgent-{i}", Gang("default/urgent", 2, ("rack",)), 9)
    assert "Preempt" in seen
    assert set(engine.nominations.owners.values()) == {"default/urgent"}
    assert engine.nominations.doomed


def test_estates_and_what_is_not_settled_of_partitions_are_in_a_snapshot() -> None:
    made = world.World(binds="hold")
    made.node("head-1", 0, labels=dict([world.VIPU]))
    estate = world.ipus(count=16)
    made.estate(estate)
    made.submit("a", devices=world.asks(ipus=4), controlled=True)
    (held,) = next(e for e in made.effects if isinstance(e, do.Bind)).placement.held
    made.tell(on.PartitionMade("uid-a", (held,)))
    made.submit("b", devices=world.asks(ipus=2))
    made.answer("a")
    (held,) = [e for e in made.effects if isinstance(e, do.Bind)][-1].placement.held
    made.tell(on.PartitionMade("uid-b", (held,)))
    made.tell(on.PartitionRefused(estate.name, 8))
    made.estate(estate, Partition("bp-uid-x", ("ag3.0",)), Partition("hand", ("ag3.1",)))
    made.tell(on.EstateLost(estate.name, "time-out"))
    keeper = made.engine.keeper
    assert keeper.made
    assert keeper.unowned
    assert keeper.bereft
    assert keeper.refused_at

    again = copied(made.engine, [Profile(ProfileConfig())])

    assert cluster_of(again) == cluster_of(made.engine)
    for name in ("made", "unowned", "bereft", "refused_at", "grace_s"):
        assert getattr(again.keeper, name) == getattr(keeper, name)
    for event in (on.EstateSeen(estate), on.PartitionGone(estate.name, "hand"), on.Tick()):
        assert again.handle(event, 99.0) == made.engine.handle(event, 99.0)


def recorded_steps(journal: Journal) -> list[Any]:
    journal.flush()
    return list(Recording(journal.path).steps())


def test_what_did_not_go_then_does_not_go_under_other_profiles(tmp_path: Path) -> None:
    never = ProfileConfig(plugins={"preempt": PluginSet(disabled=(Enabled("*"),))})
    engine = Engine([Profile(never)])
    journal = Journal(tmp_path / "j", [never])
    journal.open(engine, 0.0)
    told(journal, engine, on.NodeSeen(world.node("a", 1)))
    told(journal, engine, on.PodSeen(world.pod("low", gpus=1, node="a")))
    told(journal, engine, on.PodSeen(world.pod("high", gpus=1, priority=5)), on.Tick())
    told(journal, engine, *(on.Tick() for _ in range(5)), now=20.0)
    journal.close()

    recording = Recording(journal.path)
    player, decided = Player(recording, [ProfileConfig()]), []
    for step in recording.steps():
        now = each(outcomes(player.hear(step)))
        settle(player.engine, step, each(step.outcomes), now)
        decided += [outcome.do for outcome in now]

    assert "Preempt" in decided
    assert "Bind" not in decided
    assert player.engine.nominations.doomed == {}


def test_amounts_that_the_scheduler_had_wrong_are_seen_in_its_snapshot(tmp_path: Path) -> None:
    engine, journal = Engine(), Journal(tmp_path / "j", [ProfileConfig()])
    for event in (on.NodeSeen(world.node("a")), on.PodSeen(world.pod("p", gpus=1, node="a"))):
        engine.handle(event, 0.0)
    engine.cluster.free[0, engine.cluster.resource_columns["nvidia.com/gpu"]] += 1
    journal.open(engine, 0.0)
    journal.close()

    found = check(Recording(journal.path))

    assert (found.ok, found.on) == (False, "snapshot")
    assert found.broken == ["free nvidia.com/gpu of a was 8, not 7"]


@pytest.mark.parametrize("word", ["check", "replay", "dump"])
def test_help_has_an_example(word: str) -> None:
    assert re.search(rf"Examples:\n +bayplan {word} ?", run(word, "--help").stdout)
