"""Closing, ageing and opening again, out of a journal: wherever it begins, it tells the same."""

from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Profile
from bayplan.core.model import events as on
from bayplan.core.model.utilisation import PodUse
from bayplan.scheduler.journal import Journal
from bayplan.scheduler.recording import Recording
from bayplan.scheduler.replay import replay
from bayplan.testing.world import pod
from tests.scheduler.test_replay import copied
from tests.utilsched.clusters import GIB, carded, device, profile, used

DAY_S = 1_767_225_600.0
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from((0.5, 10, 31, 60, 91))),
        st.tuples(st.just("measure"), st.integers(0, 8)),
        st.tuples(st.just("submit"), st.integers(0, 2)),
        st.tuples(st.just("rotate"), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


@given(STEPS)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_journal_tells_the_same_wherever_it_begins(
    tmp_path_factory: object, steps: list[tuple[str, float]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("j")  # type: ignore[attr-defined]
    config, now = profile(closeAbove=1024), 0.0
    engine = Engine([Profile(config)])
    journal = Journal(folder / "j", [config], max_bytes=1 << 30, keep=100)
    journal.open(engine, now)

    def tell(event: on.Event) -> None:
        journal.step(event, now, engine.handle(event, now))

    for name in "ab":
        tell(on.NodeSeen(carded(name, used(device(0), device(1)))))
    for number, (what, amount) in enumerate(steps):
        match what:
            case "wait":
                now += amount
            case "measure":
                strange = device(0, used=int(amount) * GIB, at=DAY_S + now)
                tell(on.UseSeen("ab"[number % 2], used(strange, device(1))))
            case "submit":
                gpus = int(amount)
                tell(on.PodSeen(pod(f"p{number}", gpus=gpus, use=PodUse(7) if gpus else None)))
            case _:
                journal._limit = 0
        tell(on.Tick(day_s=DAY_S + now))
        journal._limit = 1 << 30
    journal.close()

    assert journal.errors == 0
    for file in sorted(folder.iterdir()):
        assert replay(Recording(file)).differences == []


def test_a_snapshot_knows_until_when_measures_were_looked_at() -> None:
    """So that what became too old before it wakes nobody once more."""
    chosen = Profile(profile(closeAbove=1024))
    engine = Engine([chosen])
    engine.handle(on.Tick(day_s=DAY_S), 0.0)
    assert copied(engine, [chosen]).cluster.uses.day_s == DAY_S
