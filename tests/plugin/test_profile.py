"""Profiles are checked before anything is decided, and say what is wrong and where."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgspec
import numpy as np
import pytest

from bayplan.core.engine.picking import Picking
from bayplan.core.engine.profile import (
    Enabled,
    PluginConfig,
    PluginSet,
    Profile,
    ProfileConfig,
    ProfileError,
)
from bayplan.core.engine.questions import fits, scores, why_not
from bayplan.core.model.effects import Bind, Park, Placement, Report
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins import registry
from bayplan.core.plugins.devices import Devices
from bayplan.core.plugins.hooks import Ask, Candidate, Reads
from bayplan.core.plugins.order import PrioritySort
from bayplan.core.plugins.pod_affinity import InterPodAffinity
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View
from bayplan.testing import World
from bayplan.testing.world import pod


def enabled(point: str, *names: str, **weights: int) -> dict[str, PluginSet]:
    both = [Enabled(name) for name in names] + [Enabled(n, w) for n, w in weights.items()]
    return {point: PluginSet(enabled=tuple(both))}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ProfileConfig(plugins=enabled("filer", "NodeName")), "plugins.filer.*did you mean filter"),
        (ProfileConfig(plugins=enabled("score", "ImageLocalty")), "did you mean ImageLocality"),
        (ProfileConfig(plugins=enabled("filter", "ImageLocality")), "no method refuse"),
        (ProfileConfig(plugins=enabled("filter", "NodeName")), "NodeName is enabled twice"),
        (ProfileConfig(plugins=enabled("order", "NamespaceShare")), "exactly one"),
        (ProfileConfig(plugins=enabled("permit", "NodeName")), "no method permit"),
        (ProfileConfig(plugins=enabled("preempt", "NodeName")), "no method order"),
        (ProfileConfig(plugins=enabled("bind", "NodeName")), "no method bind"),
        (
            ProfileConfig(plugins={"filter": PluginSet(disabled=(Enabled("NodePort"),))}),
            "NodePort is not enabled by default",
        ),
        (
            ProfileConfig(
                plugins={"score": PluginSet((Enabled("ImageLocality", 10**9),), (Enabled("*"),))}
            ),
            "weights are too large",
        ),
        (
            ProfileConfig(
                plugins={"score": PluginSet((Enabled("ImageLocality", 0),), (Enabled("*"),))}
            ),
            "weight of at least 1",
        ),
        (
            ProfileConfig(plugin_config=(PluginConfig("NodeResourcesFt"),)),
            "did you mean NodeResourcesFit",
        ),
        (
            ProfileConfig(plugin_config=(PluginConfig("NodeName", {"a": 1}),)),
            "NodeName takes no arguments",
        ),
        (
            ProfileConfig(
                plugin_config=(
                    PluginConfig("NodeResourcesFit", {"scoringStrategy": {"type": "Most"}}),
                )
            ),
            r"NodeResourcesFit\].args.*Most",
        ),
        (
            ProfileConfig(
                plugin_config=(
                    PluginConfig(
                        "NodeResourcesFit",
                        {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
                    ),
                )
            ),
            "shape: give at least one point",
        ),
        (ProfileConfig(picker="nowhere"), "not of the form module:function"),
        (ProfileConfig(picker="nowhere:f"), "cannot load nowhere:f"),
        (ProfileConfig(picker="math:nothing"), "cannot load math:nothing"),
        (ProfileConfig(picker="math:pi"), "math:pi is not a function"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(config: ProfileConfig, says: str) -> None:
    with pytest.raises(ProfileError, match=says) as caught:
        Profile(config)
    assert str(caught.value).startswith("profiles[bayplan]")


def test_a_profile_reads_like_a_kube_scheduler_configuration() -> None:
    text = {
        "schedulerName": "packer",
        "plugins": {"score": {"disabled": [{"name": "ImageLocality"}]}},
        "pluginConfig": [
            {
                "name": "NodeResourcesFit",
                "args": {
                    "scoringStrategy": {
                        "type": "MostAllocated",
                        "resources": [{"name": "nvidia.com/gpu", "weight": 5}],
                    }
                },
            }
        ],
    }
    world = World(config=msgspec.convert(text, ProfileConfig), a=8, b=8)
    world.submit("first", gpus=2, scheduler="packer")
    world.submit("second", gpus=2, scheduler="packer")

    assert len(set(world.running().values())) == 1


class Refuses:
    """Somebody else's filter."""

    name = "Refuses"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.ones(len(view), dtype=np.int64)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (Reason("node(s) were not to my taste", False, frozenset()),)


def test_plugins_of_others_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("Refuses", f"{__name__}:Refuses", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    world = World(config=ProfileConfig(plugins=enabled("filter", "Refuses")), a=8)
    world.submit("train", gpus=1)

    assert world.waiting() == {"train": "0/1 nodes are available: 1 node(s) were not to my taste."}


def test_a_foreign_plugin_may_not_take_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("NodeName", f"{__name__}:Refuses", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    with pytest.raises(ValueError, match=r"plugin NodeName of .* has the name of another"):
        Profile(ProfileConfig())


def profile_with(plugin: type, *points: str) -> Profile:
    """The default profile with a plugin added."""
    plugins: dict[str, PluginSet] = {}
    for point in points:
        plugins |= enabled(point, plugin.name)  # type: ignore[attr-defined]
    known: dict[str, type] = {**BUILT_IN, plugin.name: plugin}  # type: ignore[attr-defined]
    return Profile(ProfileConfig(plugins=plugins), known)


class FailsOnBad:
    name = "FailsOnBad"
    reads = Reads.CLUSTER

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if ask.pod.name == "bad":
            raise ZeroDivisionError("a bug in a plugin")
        return None

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return ()


def test_a_plugins_exception_parks_its_pod_and_the_next_goes_on() -> None:
    world = World(profiles=[profile_with(FailsOnBad, "filter")], a=8)
    world.submit("bad", gpus=1)
    world.submit("good", gpus=1)

    assert world.running() == {"good": "a"}
    parked = [effect for effect in world.effects if isinstance(effect, Park)]
    assert [effect.pod.name for effect in parked] == ["bad"]
    assert "a bug in a plugin" in parked[0].story
    assert world.engine.plugin_errors == 1

    world.wait(1)
    assert world.engine.plugin_errors == 2  # tried again after its back-off


class RefusesToReserve:
    name = "RefusesToReserve"

    def reserve(self, ask: Ask, placement: Placement, cluster: Cluster) -> str | None:
        assert ask.pod.uid in cluster.pods
        return "no room in my book" if ask.pod.name == "bad" else None


def test_a_refused_reservation_drops_the_trial() -> None:
    world = World(profiles=[profile_with(RefusesToReserve, "reserve")], a=8)
    world.submit("bad", gpus=8)
    world.submit("good", gpus=8)

    assert world.running() == {"good": "a"}


def last(pod: Pod, candidates: Sequence[Candidate]) -> int:
    return len(candidates) - 1


def raises(pod: Pod, candidates: Sequence[Candidate]) -> int:
    raise KeyError("picker")


def outside(pod: Pod, candidates: Sequence[Candidate]) -> int:
    return len(candidates)


def no_index(pod: Pod, candidates: Sequence[Candidate]) -> Any:
    return "n1"


def most_free(pod: Pod, candidates: Sequence[Candidate]) -> int:
    return max(range(len(candidates)), key=lambda i: candidates[i].free["nvidia.com/gpu"])


def picked(function: str) -> World:
    return World(config=ProfileConfig(picker=f"{__name__}:{function}"), a=4, b=8, c=6)


def test_a_picker_replaces_the_scores() -> None:
    world = picked("most_free")
    world.submit("train", gpus=1)

    assert world.running() == {"train": "b"}
    binds = [effect for effect in world.effects if isinstance(effect, Bind)]
    assert binds[0].picked is not None


def test_a_picker_sees_only_nodes_that_passed_best_score_first() -> None:
    world = picked("last")
    world.submit("train", gpus=7)

    assert world.running() == {"train": "b"}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("raises", "exception KeyError"),
        ("outside", "index outside the candidates"),
        ("no_index", "not an index"),
    ],
)
def test_a_picker_that_fails_leaves_it_to_the_scores(function: str, why: str) -> None:
    by_scores = World(a=4, b=8, c=6)
    by_scores.submit("train", gpus=1)
    world = picked(function)
    world.submit("train", gpus=1)

    assert world.running() == by_scores.running()
    assert world.engine.picking.fallbacks == {why: 1}


def test_a_picker_that_fails_again_and_again_is_told_of_ever_more_seldom() -> None:
    told: list[str] = []
    world = picked("raises")
    world.engine.picking = Picking(report=told.append)
    for i in range(10):
        world.submit(f"train-{i}", gpus=1)

    assert world.engine.picking.fallbacks == {"exception KeyError": 10}
    assert told == [
        f"profile bayplan, pod default/train-{times - 1}: the picker was not followed "
        f"(exception KeyError; {times} so far)"
        for times in (1, 2, 4, 8)
    ]


class FailsAsTheyLeave(PrioritySort):
    name = "FailsAsTheyLeave"

    def left(self, pod: Pod) -> None:
        raise LookupError("a bug in a plugin")


def test_an_order_that_fails_as_a_pod_leaves_holds_nothing_up() -> None:
    order = {
        "order": PluginSet(
            enabled=(Enabled("FailsAsTheyLeave"),), disabled=(Enabled("PrioritySort"),)
        )
    }
    known: dict[str, type] = {**BUILT_IN, "FailsAsTheyLeave": FailsAsTheyLeave}
    world = World(profiles=[Profile(ProfileConfig(plugins=order), known)], a=8)
    world.submit("train", gpus=1)

    assert world.running() == {"train": "a"}
    reports = [effect.text for effect in world.effects if isinstance(effect, Report)]
    assert reports == [
        "plugin FailsAsTheyLeave failed as pod default/train left the queue: "
        "LookupError: a bug in a plugin"
    ]
    assert world.engine.plugin_errors == 1
    world.submit("large", gpus=9)
    world.finish("large")  # from the queue
    world.submit("next", gpus=1)
    assert world.running() == {"train": "a", "next": "a"}


def test_a_picker_that_takes_too_long_is_not_followed() -> None:
    times = iter((0.0, 5.0))
    world = picked("last")
    world.engine.picking = Picking(clock=lambda: next(times), limit_s=0.1)
    world.submit("train", gpus=1)

    assert world.engine.picking.fallbacks == {"time-out": 1}


def test_filters_out_of_kube_schedulers_order_still_name_the_first() -> None:
    """With resources checked before taints, a node that fails both names resources."""
    order = ("NodeResourcesFit", "TaintToleration", "NodeAffinity", "NodeUnschedulable")
    plugins = {
        "filter": PluginSet(tuple(Enabled(name) for name in order), disabled=(Enabled("*"),))
    }
    world = World(config=ProfileConfig(plugins=plugins))
    world.node("a", 2, unschedulable=True)
    world.node("b", 8, unschedulable=True)
    world.submit("train", gpus=4)

    assert world.waiting() == {
        "train": "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) were unschedulable."
    }


@pytest.mark.parametrize("kind", list(Reads))
def test_a_score_may_be_static_load_or_cluster(kind: Reads) -> None:
    class LikesB:
        name = "LikesB"
        reads = kind

        def score(self, ask: Ask, view: View) -> Ints | None:
            return np.where(view.named(("b",)), 100, 0)

    plugins = {"score": PluginSet((Enabled("LikesB", 50),))}
    profile = Profile(ProfileConfig(plugins=plugins), {**BUILT_IN, "LikesB": LikesB})
    world = World(profiles=[profile], a=8, b=8, c=8)
    world.submit("train", gpus=1)

    assert world.running() == {"train": "b"}


def test_a_cluster_plugin_of_others_may_look_at_labels() -> None:
    class OnlyTheGood:
        name = "OnlyTheGood"
        reads = Reads.CLUSTER

        def refuse(self, ask: Ask, view: View) -> Codes | None:
            return np.full(len(view), int(ask.pod.labels.get("good") != "yes"))

        def reasons(self, ask: Ask) -> Sequence[Reason]:
            return (Reason("the pod was not good", False, frozenset()),)

    world = World(profiles=[profile_with(OnlyTheGood, "filter")], a=8)
    world.submit("first", gpus=1)
    world.submit("second", gpus=1, labels={"good": "yes"})

    assert world.running() == {"second": "a"}
    assert world.waiting() == {"first": "0/1 nodes are available: 1 the pod was not good."}


class NotThere(Devices):
    name = "NotThere"

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return None


class LikesAll(InterPodAffinity):
    name = "LikesAll"

    def score(self, ask: Ask, view: View) -> Ints | None:
        return None


class LikesCards(Devices):
    name = "LikesCards"

    def score(self, ask: Ask, view: View) -> Ints | None:
        return None


@pytest.mark.parametrize(
    ("point", "plugin", "instead"),
    [
        ("filter", NotThere, "overrides refuse but not refuser"),
        ("score", LikesCards, "overrides score but not scorer"),
        ("score", LikesAll, "overrides score but not skips"),
    ],
)
def test_what_is_asked_in_place_of_a_method_is_overridden_with_it(
    point: str, plugin: type, instead: str
) -> None:
    config = ProfileConfig(plugins=enabled(point, plugin.__name__))
    with pytest.raises(ProfileError, match=instead):
        Profile(config, {**BUILT_IN, plugin.__name__: plugin})


class Rank:
    """Holds nodes against each other, and can say nothing of none."""

    name = "Rank"
    reads = Reads.CLUSTER
    ignores_labels = True

    def score(self, ask: Ask, view: View) -> Ints | None:
        free = view.free[3]
        scores: Ints = 100 * free // max(int(free.max()), 1)
        return scores


def test_who_holds_nodes_against_each_other_is_not_asked_about_none() -> None:
    profile = Profile(ProfileConfig(plugins=enabled("score", Rank=9)), {**BUILT_IN, "Rank": Rank})
    world = World(a=1, b=2, profiles=[profile])
    world.submit("fits", gpus=1)
    world.submit("large", gpus=9)

    assert set(world.running()) == {"fits"}
    assert "Insufficient nvidia.com/gpu" in world.waiting()["large"]
    assert world.engine.plugin_errors == 0


def test_nor_when_its_scores_are_shown() -> None:
    profile = Profile(ProfileConfig(plugins=enabled("score", Rank=9)), {**BUILT_IN, "Rank": Rank})
    verdicts = World(a=1, profiles=[profile]).engine.verdicts["bayplan"]

    nowhere = World(profiles=[profile]).engine.verdicts["bayplan"]

    assert scores(nowhere, pod("small", gpus=1)) == {}
    assert why_not(nowhere, pod("small", gpus=1)) is not None
    assert scores(verdicts, pod("large", gpus=9)) == {}
    assert fits(verdicts, pod("large", gpus=9)).feasible == []
    assert why_not(verdicts, pod("large", gpus=9)) is not None
    assert "Rank" in scores(verdicts, pod("small", gpus=1))["a"]
