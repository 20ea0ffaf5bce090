"""Profiles: which plugins decide for a scheduler name, checked before anything is decided."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import msgspec
from msgspec import Struct

from bayplan.core.plugins.hooks import (
    HOOKS,
    MAX_SCORE,
    Admit,
    Bind,
    Choose,
    Explains,
    Filter,
    Order,
    Permit,
    Picker,
    Preempt,
    Reads,
    Reject,
    Reserve,
    Restrict,
    Score,
)
from bayplan.core.plugins.registry import DEFAULT, installed

MAX_TOTAL = 1 << 30  # a weighted sum of scores must leave room for the tie-break in an int64


class ProfileError(ValueError):
    """A profile that cannot be used; the text names the path and the nearest valid word."""


class Enabled(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: int | None = None


class PluginSet(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: tuple[Enabled, ...] = ()
    disabled: tuple[Enabled, ...] = ()  # the name "*" disables all defaults


class PluginConfig(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] = {}


class ProfileConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One entry of `profiles`, as it stands in a configuration file."""

    scheduler_name: str = "bayplan"
    plugins: dict[str, PluginSet] = {}
    plugin_config: tuple[PluginConfig, ...] = ()
    picker: str | None = None  # module:function


# By hook: a method, and one that is asked in its place. Who overrides the first overrides both.
OVERRIDES = {
    "filter": (("refuse", "refuser"),),
    "score": (("score", "scorer"), ("score", "skips")),
}


def definer(plugin: type, method: str) -> int:
    """How far up the bases of the class it is defined."""
    return next((at for at, each in enumerate(plugin.__mro__) if method in vars(each)), -1)


class Profile:
    """The plugins of one scheduler name, by hook."""

    def __init__(self, config: ProfileConfig, known: Mapping[str, type] | None = None) -> None:
        self.name = config.scheduler_name
        self._known = dict(installed() if known is None else known)
        self._path = f"profiles[{self.name}]"
        chosen = self._choose(config)
        instances = self._build(config, chosen)

        def those(point: str) -> list[Any]:
            return [instances[name] for name, _ in chosen.get(point, ())]

        self.admit: list[Admit] = those("admit")
        if len(those("order")) != 1:
            raise ProfileError(f"{self._path}.plugins.order: enable exactly one plugin")
        self.order: Order = those("order")[0]
        # Who filters by devices chooses only where it was asked whether they are there.
        filters = those("filter")
        self.choose: list[Choose] = [
            each for each in those("choose") if each in filters or not hasattr(each, "refuse")
        ]
        self.reserve: list[Reserve] = those("reserve")
        self.permit: list[Permit] = those("permit")
        if len(those("preempt")) > 1:
            raise ProfileError(f"{self._path}.plugins.preempt: enable at most one plugin")
        self.preempt: Preempt | None = next(iter(those("preempt")), None)
        self.bind: list[Bind] = those("bind")
        self.filters: list[tuple[int, Filter]] = []
        self.rejects: list[tuple[int, Reject]] = []
        self.restricts: list[tuple[int, Restrict]] = []
        self.refusers: list[Filter] = [cast(Filter, None)]  # by number; 0 is not given
        self._number(filters)
        # A look at a protocol takes longer than many an answer.
        self.explains: dict[str, Explains] = {
            cast(Filter, each).name: each for each in filters if isinstance(each, Explains)
        }
        self.scores: list[tuple[int, Score]] = [
            (weight, instances[name]) for name, weight in chosen.get("score", ())
        ]
        if sum(weight for weight, _ in self.scores) * MAX_SCORE >= MAX_TOTAL:
            raise ProfileError(f"{self._path}.plugins.score: the weights are too large together")
        self.picker = load_picker(config.picker, f"{self._path}.picker")

    def of_kind(self, reads: Reads) -> tuple[list[tuple[int, Filter]], list[tuple[int, Score]]]:
        return (
            [(number, f) for number, f in self.filters if f.reads is reads],
            [(weight, s) for weight, s in self.scores if s.reads is reads],
        )

    def _number(self, filters: list[Any]) -> None:
        """Earlier checks have smaller numbers: what refuses the pod as a whole, then what narrows
        the search, then the filters."""
        for plugin in filters:
            if isinstance(plugin, Reject):
                self.rejects.append((len(self.refusers), plugin))
                self.refusers.append(cast(Filter, plugin))
        for plugin in filters:
            if isinstance(plugin, Restrict):
                self.restricts.append((len(self.refusers), plugin))
                self.refusers.append(cast(Filter, plugin))
        for plugin in filters:
            self.filters.append((len(self.refusers), plugin))
            self.refusers.append(plugin)

    def _choose(self, config: ProfileConfig) -> dict[str, list[tuple[str, int]]]:
        chosen = {point: list(names) for point, names in DEFAULT.items()}
        for point, plugins in config.plugins.items():
            path = f"{self._path}.plugins.{point}"
            if point not in HOOKS:
                raise ProfileError(f"{path}: no such extension point{nearest(point, HOOKS)}")
            names = chosen.setdefault(point, [])
            for entry in plugins.disabled:
                if entry.name == "*":
                    names.clear()
                    continue
                if all(name != entry.name for name, _ in names):
                    raise ProfileError(f"{path}.disabled: {entry.name} is not enabled by default")
                names[:] = [(name, w) for name, w in names if name != entry.name]
            for entry in plugins.enabled:
                if any(name == entry.name for name, _ in names):
                    raise ProfileError(f"{path}.enabled: {entry.name} is enabled twice")
                weight = 1 if entry.weight is None else entry.weight
                if point == "score" and weight < 1:
                    raise ProfileError(f"{path}.enabled: {entry.name} needs a weight of at least 1")
                names.append((entry.name, weight))
            for name, _ in names:
                self._check(name, point, path)
        return chosen

    def _check(self, name: str, point: str, path: str) -> None:
        plugin = self._known.get(name)
        if plugin is None:
            raise ProfileError(f"{path}: no plugin {name}{nearest(name, self._known)}")
        method = HOOKS[point]
        if not callable(getattr(plugin, method, None)):
            raise ProfileError(f"{path}: {name} has no method {method}, so it cannot {point}")
        reads = getattr(plugin, "reads", None)
        if point == "filter" and not callable(getattr(plugin, "reasons", None)):
            raise ProfileError(f"{path}: {name} has no method reasons, so it cannot say why")
        if point in ("filter", "score") and not isinstance(reads, Reads):
            raise ProfileError(f"{path}: {name} does not say what it reads (reads = Reads.…)")
        for asked, instead in OVERRIDES.get(point, ()):
            if definer(plugin, asked) < definer(plugin, instead):
                why = f"overrides {asked} but not {instead}, which is asked in its place"
                raise ProfileError(f"{path}: {name} {why}")
        if point == "filter" and hasattr(plugin, "reject") and reads is Reads.LOAD:
            raise ProfileError(f"{path}: {name} has reject, which load plugins may not have")
        if point == "score" and hasattr(plugin, "normalise") and reads is not Reads.STATIC:
            raise ProfileError(f"{path}: {name} has normalise, which only static scores may have")

    def _build(
        self, config: ProfileConfig, chosen: Mapping[str, list[tuple[str, int]]]
    ) -> dict[str, Any]:
        names = list(dict.fromkeys(name for points in chosen.values() for name, _ in points))
        args: dict[str, dict[str, Any]] = {}
        for entry in config.plugin_config:
            if entry.name not in names:
                where = f"{self._path}.pluginConfig"
                raise ProfileError(
                    f"{where}: {entry.name} is not enabled{nearest(entry.name, names)}"
                )
            args[entry.name] = entry.args
        return {name: self._instance(name, args.get(name)) for name in names}

    def _instance(self, name: str, args: dict[str, Any] | None) -> Any:
        plugin = self._known[name]
        path = f"{self._path}.pluginConfig[{name}].args"
        if args is None:
            return plugin()
        if not hasattr(plugin, "Args"):
            raise ProfileError(f"{path}: {name} takes no arguments")
        try:
            return plugin(msgspec.convert(args, plugin.Args))
        except (msgspec.ValidationError, ValueError) as error:
            raise ProfileError(f"{path}: {error}") from error


def nearest(word: str, words: Mapping[str, Any] | list[str]) -> str:
    close = get_close_matches(word, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(sorted(words))}"


def load_picker(reference: str | None, path: str) -> Picker | None:
    """The function that `module:function` names."""
    if reference is None:
        return None
    module, _, function = reference.partition(":")
    if not module or not function:
        raise ProfileError(f"{path}: {reference!r} is not of the form module:function")
    try:
        picker: Callable[..., int] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ProfileError(f"{path}: cannot load {reference}: {error}") from error
    if not callable(picker):
        raise ProfileError(f"{path}: {reference} is not a function")
    return picker


def check_together(profiles: Sequence[Profile]) -> None:
    """Profiles share one queue, so they must sort it alike."""
    names = [profile.name for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise ProfileError(f"profiles[{name}]: two profiles have this schedulerName")
    orders = {type(profile.order).__name__ for profile in profiles}
    if len(orders) != 1:
        raise ProfileError(f"profiles: all must enable the same order plugin, not {sorted(orders)}")
