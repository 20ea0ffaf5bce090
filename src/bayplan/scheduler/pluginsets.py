"""The plugins of a profile, as kube-scheduler's configuration names them, into our hooks.

Several of its extension points are one hook here; `multiPoint` stands for all that a plugin has.
What comes out names only hooks, and every plugin of those that differ from the default.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.core.engine.profile import (
    Enabled,
    PluginConfig,
    PluginSet,
    Profile,
    ProfileConfig,
    ProfileError,
    nearest,
)
from bayplan.core.model.selectors import NodeTerm
from bayplan.core.plugins.hooks import HOOKS
from bayplan.core.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from bayplan.core.plugins.registry import DEFAULT
from bayplan.kube import wire
from bayplan.kube.terms import Wrong, preferred_nodes
from bayplan.scheduler.strict import Fault, build

MULTI = "multiPoint"
POINTS = {  # kube-scheduler's extension point: our hook
    "preEnqueue": "admit",
    "queueSort": "order",
    "preFilter": "filter",
    "postFilter": "preempt",
    "preScore": "score",
    "preBind": "bind",
    "postBind": "bind",
    **{hook: hook for hook in HOOKS},
}
ALL = "*"
Chosen = dict[str, list[Enabled]]  # by hook, in order


class AddedAffinity(Struct, frozen=True, rename="camel"):
    """NodeAffinityArgs as kube-scheduler writes them."""

    added_affinity: wire.NodeAffinity | None = None


def resolve(
    given: ProfileConfig, start: ProfileConfig, path: str, known: Mapping[str, type]
) -> ProfileConfig:
    """The profile with `start`'s plugins where it says nothing, checked; or Fault."""
    default = weighed(
        {hook: [Enabled(*entry) for entry in DEFAULT.get(hook, ())] for hook in HOOKS}
    )
    chosen = dict(default)
    for hook, plugins in start.plugins.items():
        chosen[hook] = merged(chosen[hook], plugins)
    points = sorted(given.plugins.items(), key=lambda item: item[0] != MULTI)  # it goes first
    for point, plugins in points:
        at = f"{path}.plugins.{point}"
        hooks = list(HOOKS) if point == MULTI else [POINTS.get(point, "")]
        if hooks == [""]:
            hint = nearest(point, [MULTI, *POINTS])
            raise Fault(at, f"no such extension point{hint}")
        check_names(plugins, hooks, chosen, at, known)
        for hook in hooks:
            method = HOOKS[hook]
            takes_part = [e for e in plugins.enabled if hasattr(known[e.name], method)]
            chosen[hook] = merged(chosen[hook], PluginSet(tuple(takes_part), plugins.disabled))
    resolved = ProfileConfig(
        scheduler_name=given.scheduler_name,
        plugins={
            hook: PluginSet(tuple(entries), (Enabled(ALL),))
            for hook, entries in weighed(chosen).items()
            if entries != default[hook]
        },
        plugin_config=tuple(arguments(given, start, chosen, path, known)),
        picker=given.picker or start.picker,
    )
    try:
        Profile(resolved, known)
    except ProfileError as error:
        own = str(error).removeprefix(f"profiles[{given.scheduler_name}]")
        raise Fault("", f"{path}{own}") from None
    return resolved


def merged(before: list[Enabled], given: PluginSet) -> list[Enabled]:
    """As kube-scheduler: what is enabled again takes its old place, with the new weight."""
    off = {entry.name for entry in given.disabled}
    anew = {entry.name: entry for entry in given.enabled}
    stay = [] if ALL in off else [entry for entry in before if entry.name not in off]
    kept = [anew.pop(entry.name, entry) for entry in stay]
    return kept + list(anew.values())


def weighed(chosen: Chosen) -> Chosen:
    """Weights where they mean something, and only there."""
    return {
        hook: [Enabled(e.name, (e.weight or 1) if hook == "score" else None) for e in entries]
        for hook, entries in chosen.items()
    }


def check_names(
    plugins: PluginSet, hooks: list[str], chosen: Chosen, path: str, known: Mapping[str, type]
) -> None:
    """Every name stands for a plugin that can be enabled, or is enabled, there."""
    seen: set[str] = set()
    for i, entry in enumerate(plugins.enabled):
        at = f"{path}.enabled[{i}]"
        if entry.name not in known:
            raise Fault(f"{at}.name", f"no plugin {entry.name}{nearest(entry.name, known)}")
        if not any(hasattr(known[entry.name], HOOKS[hook]) for hook in hooks):
            able = [n for n, plugin in known.items() if hasattr(plugin, HOOKS[hooks[0]])]
            others = f"; those that do: {', '.join(sorted(able))}" if able else ""
            raise Fault(f"{at}.name", f"{entry.name} does not take part there{others}")
        if entry.name in seen:
            raise Fault(f"{at}.name", f"{entry.name} is named twice")
        if "score" in hooks and entry.weight is not None and entry.weight < 1:
            raise Fault(f"{at}.weight", f"should be at least 1, not {entry.weight}")
        seen.add(entry.name)
    there = [entry.name for hook in hooks for entry in chosen[hook]]
    for i, entry in enumerate(plugins.disabled):
        if entry.name not in (ALL, *there):
            hint = nearest(entry.name, there) if there else ""
            raise Fault(f"{path}.disabled[{i}].name", f"{entry.name} is not enabled there{hint}")


def arguments(
    given: ProfileConfig,
    start: ProfileConfig,
    chosen: Chosen,
    path: str,
    known: Mapping[str, type],
) -> Iterator[PluginConfig]:
    """The arguments of each plugin, checked; those of `start` where none are given."""
    enabled = [entry.name for entries in chosen.values() for entry in entries]
    names = [entry.name for entry in given.plugin_config]
    yield from (e for e in start.plugin_config if e.name not in names and e.name in enabled)
    for i, entry in enumerate(given.plugin_config):
        at = f"{path}.pluginConfig[{i}]"
        if entry.name not in enabled:
            hint = nearest(entry.name, list(dict.fromkeys(enabled)))
            raise Fault(f"{at}.name", f"{entry.name} is not enabled{hint}")
        if entry.name in names[:i]:
            raise Fault(f"{at}.name", f"{entry.name} is named twice")
        args = {key: v for key, v in entry.args.items() if key not in ("apiVersion", "kind")}
        kind = getattr(known[entry.name], "Args", None)
        if kind is None and args:
            raise Fault(f"{at}.args", f"{entry.name} takes no arguments")
        if entry.name == NodeAffinity.name:
            args = added_affinity(args, f"{at}.args")
        elif isinstance(kind, type) and issubclass(kind, Struct):
            build(args, kind, f"{at}.args")
        if kind is not None:
            yield PluginConfig(entry.name, args)


def added_affinity(args: Mapping[str, Any], path: str) -> dict[str, Any]:
    """kube-scheduler's `addedAffinity` as the plugin's own values."""
    affinity = build(dict(args), AddedAffinity, path).added_affinity or wire.NodeAffinity()
    at = f"{path}.addedAffinity"
    required: tuple[NodeTerm, ...] | None = None
    if affinity.required is not None:
        where = f"{at}.{wire.REQUIRED}.nodeSelectorTerms"
        terms = affinity.required.node_selector_terms or ()
        required = tuple(whole_term(term, f"{where}[{i}]") for i, term in enumerate(terms))
        if not required:
            raise Fault(where, "name at least one term")
    preferred = []
    for i, entry in enumerate(affinity.preferred or ()):
        where = f"{at}.{wire.PREFERRED}[{i}]"
        if not 1 <= (entry.weight or 0) <= 100:
            raise Fault(f"{where}.weight", f"should be 1 to 100, not {entry.weight}")
        term = whole_term(entry.preference or wire.NodeSelectorTerm(), f"{where}.preference")
        preferred.append((entry.weight or 0, term))
    values = NodeAffinityArgs(required, tuple(preferred))
    plain: dict[str, Any] = msgspec.to_builtins(values)
    return plain


def whole_term(term: wire.NodeSelectorTerm, path: str) -> NodeTerm:
    """A pod's broken term matches nothing and is let be; a profile's is a mistake."""
    if not term.match_expressions and not term.match_fields:
        raise Fault(path, "an empty term matches no node")
    try:
        ((_, parsed),) = preferred_nodes([wire.PreferredNodes(1, term)], "")
    except Wrong as error:
        raise Fault(f"{path}{error.field.removeprefix('[0].preference')}", error.why) from None
    if parsed.broken:
        raise Fault(f"{path}.matchFields", "no node has such a field")
    return parsed
