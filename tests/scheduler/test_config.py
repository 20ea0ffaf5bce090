"""Configuration files in, one tree out."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, ProfileConfig
from bayplan.core.model.groups import Patience
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.plugins.hooks import HOOKS
from bayplan.core.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from bayplan.core.plugins.registry import DEFAULT
from bayplan.scheduler.config import (
    DEFAULT_PROFILES,
    NEVER_S,
    ConfigError,
    Configuration,
    load,
    profiles_of,
    read,
    seconds,
    size,
)
from bayplan.testing import World
from bayplan.testing.world import asks, cards

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def config(text: str) -> Configuration:
    return read(HEAD + text, "file")


def names(found: Configuration, hook: str, at: int = 0) -> list[str]:
    """The plugins of a hook, in the profile as it will run."""
    plugins = found.profiles[at].plugins.get(hook)
    if plugins is None:
        return [name for name, _ in DEFAULT.get(hook, ())]
    return [entry.name for entry in plugins.enabled]


# ---- what is read


def test_everything_has_a_default() -> None:
    assert config("") == Configuration()


def test_the_least_form_is_the_default_profile() -> None:
    found = config("profiles:\n- schedulerName: bayplan\nleaderElection: {leaderElect: false}")

    assert found == Configuration(profiles=(ProfileConfig("bayplan"),))


def test_without_a_file_there_are_the_promised_profiles_and_they_work_together() -> None:
    profiles = profiles_of(Configuration())

    alnair = ["alnair-cost-saving", "alnair-high-performance", "utilsched"]
    assert [profile.name for profile in profiles] == ["bayplan", "toyscheduler", *alnair]
    Engine(profiles)


def test_the_shipped_configuration_for_alnair_serves_pods_without_a_scheduler_too() -> None:
    text = (files("bayplan") / "deploy" / "alnair.yaml").read_text()
    found = read(text, "alnair.yaml")
    world = World(profiles=profiles_of(found))
    for name in ("a", "b"):
        world.node(name, **cards(16384, 16384, name=name))
    for i, scheduler in enumerate(("default-scheduler", "alnair-cost-saving") * 2):
        world.submit(f"p{i}", devices=asks(mib=4096), scheduler=scheduler)

    assert len({tuple(ids) for ids in world.devices.values()}) == 1
    world.submit("fast", devices=asks(mib=4096), scheduler="alnair-high-performance")
    assert world.devices["fast"] != world.devices["p0"]


def test_every_field_is_read() -> None:
    found = config("""
profiles: [{schedulerName: a}, {schedulerName: b, picker: "math:floor"}]
leaderElection:
  leaderElect: true
  leaseDuration: 1m30s
  renewDeadline: 1m
  retryPeriod: 500ms
  resourceName: other
  resourceNamespace: elsewhere
clientConnection: {kubeconfig: /etc/kubeconfig, connections: 8}
maxInFlight: 100
bindWorkers: 16
listen: 127.0.0.1:1
api: "[::1]:2"
apiAccess: {tokenFile: t, tls: {certFile: c, keyFile: k}}
questions: inline
journal: {path: /var/log/journal, maxSize: 1Gi, keep: 0}
checkLiveEvery: 0
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
gangs: {timeout: 1m, reserveAfter: never}
devices: [{name: fpga, resources: [{name: example.com/fpga}], ids: index, environment: FPGAS}]
pools:
- {controller: "vipu:8090:ctrl=a", timeout: 5s, atOnce: 2, caFile: c, userId: u, accessKeyFile: k}
clusterName: prod
extender:
  {port: 1, policy: spread, preemption: false, maxBodySize: 1Mi, requestTimeout: 3s,
   tls: {certFile: c, keyFile: k, clientCAFile: a}}
prometheus: {server: "http://p:9090", period: 1m, timeout: 5s, tokenFile: t, caFile: c}
""")
    plain = msgspec.to_builtins(found)
    default = msgspec.to_builtins(Configuration())

    assert plain["leaderElection"] == {
        "leaderElect": True,
        "leaseDuration": 90.0,
        "renewDeadline": 60.0,
        "retryPeriod": 0.5,
        "resourceName": "other",
        "resourceNamespace": "elsewhere",
    }
    assert plain["clientConnection"] == {"kubeconfig": "/etc/kubeconfig", "connections": 8}
    assert plain["journal"] == {"path": "/var/log/journal", "maxSize": 1 << 30, "keep": 0}
    tls = {"certFile": "c", "keyFile": "k", "clientCAFile": ""}
    assert plain["apiAccess"] == {"tokenFile": "t", "tls": tls}
    assert plain["extender"] == {
        "port": 1,
        "policy": "spread",
        "preemption": False,
        "tls": {"certFile": "c", "keyFile": "k", "clientCAFile": "a"},
        "maxBodySize": 1 << 20,
        "requestTimeout": 3.0,
    }
    assert plain["prometheus"] == {
        "server": "http://p:9090",
        "period": 60.0,
        "timeout": 5.0,
        "tokenFile": "t",
        "caFile": "c",
    }
    (fpga,) = found.devices
    assert (fpga.name, fpga.ids, fpga.environment) == ("fpga", "index", "FPGAS")
    assert list(found.vendors.classes) == ["nvidia", "neuron", "ipu", "fpga"]
    (pool,) = found.pools
    assert pool.parts == ("vipu", 8090, ("ctrl", "a"))
    assert (pool.timeout, pool.at_once, found.partition_grace_s) == (5.0, 2, 95.0)
    assert (pool.ca_file, pool.user_id, pool.access_key_file) == ("c", "u", "k")
    assert (found.check_live_every, found.max_in_flight, found.bind_workers) == (0.0, 100, 16)
    assert found.patience == Patience(60.0, NEVER_S)
    same = [key for key in plain if plain[key] == default[key]]
    assert same == ["apiVersion", "kind"]


@pytest.mark.parametrize(
    "text", ["vipu:8090", "vipu:0:a=b", "vipu:99999:a=b", "a b:1:a=b", "vipu:8090:ab", ":1:a=b", ""]
)
def test_a_controller_is_told_with_the_label_of_its_nodes(text: str) -> None:
    with pytest.raises(ConfigError, match=r"pools\[0\]\.controller: .*host:port:label=value"):
        config(f"pools: [{{controller: '{text}'}}]")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("devices: [{name: ipu, resources: [{name: a.b/c}]}]", "one class has the model partition"),
        (
            "devices: [{name: x, model: partition, resources: [{name: a.b/c, kind: partition}]}]",
            "one class has the model partition",
        ),
    ],
)
def test_controllers_serve_one_class(more: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(f"pools: [{{controller: 'vipu:8090:a=b'}}]\n{more}")


def test_a_call_may_take_some_time() -> None:
    with pytest.raises(ConfigError, match=r"pools\[0\]\.timeout: should be longer"):
        config("pools: [{controller: 'vipu:8090:a=b', timeout: 0s}]")


def test_a_controller_is_told_once() -> None:
    with pytest.raises(ConfigError, match=r"pools\[1\]\.controller: pools\[0\] is vipu:8090 too"):
        config("pools: [{controller: 'vipu:8090:a=b'}, {controller: 'VIPU:08090:a=c'}]")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{name: x, resources: [{name: a.b/c, kind: partition}]}", "for the model partition"),
        ("{name: x, model: partition, resources: [{name: a.b/c}]}", "for the model partition"),
        ("{name: x, resources: [{name: a.b/c}], annotation: a.b/c}", "for the model partition"),
        ("{name: x, model: partition, resources: [{name: a.b/c, kind: partition}]}", "pools: "),
        (
            "{name: x, model: partition, annotation: bayplan.dev/gang, "
            "resources: [{name: a.b/c, kind: partition}]}",
            "means something else already",
        ),
    ],
)
def test_partitions_have_a_model_of_their_own(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(f"devices: [{text}]")


def test_null_is_as_if_nothing_was_said() -> None:
    assert config("profiles:\njournal: {path: null, keep:}\nlisten: null") == Configuration()


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "bayplan.yaml"
    path.write_text(HEAD + "maxInFlight: 7")

    assert load(path).max_in_flight == 7
    assert load(str(path)) == load(path)


def test_json_is_yaml() -> None:
    head = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration"}

    assert read(msgspec.json.encode(head | {"bindWorkers": 3}), "x").bind_workers == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15s", 15),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("0", 0),
        (0, 0),
        ("0s", 0),
        ("1h0m0.5s", 3600.5),
    ],
)
def test_durations_are_written_as_kubernetes_writes_them(text: Any, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "15", 15, "s", "-1s", "1 s", "1s ", "1d", True, None, "1ss"])
def test_other_durations_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 15s"):
        seconds(text)


def test_sizes_are_quantities() -> None:
    assert [size(text) for text in ("100Mi", "1k", 5, "5")] == [100 << 20, 1000, 5, 5]
    for text in ("", "0", "-1", "much", True, None, "1Mib"):
        with pytest.raises(ValueError, match="is not a size such as 100Mi"):
            size(text)


DOCS = Path(__file__).parents[2] / "docs"
IN_DOCS = [
    (page.name, text)
    for page in sorted(DOCS.glob("*.md"))
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)
    if text.startswith(HEAD) and page.name != "your-own-scheduler.md"  # tests/fake runs that one
]


@pytest.mark.parametrize(("page", "text"), IN_DOCS)
def test_what_the_docs_show_is_valid(page: str, text: str) -> None:
    profiles_of(read(text, page))


def test_the_docs_show_every_default() -> None:
    whole = IN_DOCS[0][1]
    fields = msgspec.to_builtins(Configuration())

    assert read(whole, "docs") == Configuration()
    assert set(yaml.safe_load(whole)) == set(fields)
    for name in ("leaderElection", "clientConnection", "journal"):
        assert set(yaml.safe_load(whole)[name]) == set(fields[name])


def test_how_long_gangs_wait() -> None:
    assert config("").patience == Patience()
    assert config("gangs: {timeout: never, reserveAfter: 0s}").patience == Patience(NEVER_S, 0.0)
    assert config("gangs: {reserveAfter: null}").patience == Patience()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{timeout: 0s}", "gangs.timeout: should be longer than 0s, or never"),
        ("{timeout: always}", 'gangs.timeout: "always" is not a duration'),
        ("{reserveAfter: -1s}", 'gangs.reserveAfter: "-1s" is not a duration'),
        ("{reserve: 5m}", "gangs.reserve: no such field; did you mean reserveAfter?"),
    ],
)
def test_what_is_wrong_with_how_long_gangs_wait(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config(f"gangs: {text}")


# ---- plugins


def test_kube_schedulers_extension_points_are_known() -> None:
    found = config("""
profiles:
- plugins:
    preEnqueue: {disabled: [{name: SchedulingGates}]}
    queueSort: {disabled: [{name: "*"}], enabled: [{name: NamespaceShare}]}
    preFilter: {disabled: [{name: NodePorts}]}
    filter: {disabled: [{name: NodeName}]}
    preScore: {disabled: [{name: ImageLocality}]}
    postFilter: {disabled: [{name: "*"}]}
    bind: {}
    permit: {enabled: []}
""")
    filters = names(config(""), "filter")

    assert names(found, "admit") == []
    assert names(found, "order") == ["NamespaceShare"]
    assert names(found, "filter") == [n for n in filters if n not in ("NodePorts", "NodeName")]
    assert "ImageLocality" not in names(found, "score")
    assert "ImageLocality" in names(config(""), "score")
    profiles_of(found)


def test_a_plugin_enabled_again_keeps_its_place_and_gets_the_weight() -> None:
    found = config("profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: 9}]}}}]")
    weights = [(entry.name, entry.weight) for entry in found.profiles[0].plugins["score"].enabled]

    assert weights == [(n, 9 if n == "NodeAffinity" else w) for n, w in DEFAULT["score"]]
    assert [weight for weight, _ in profiles_of(found)[0].scores] == [w for _, w in weights]


def test_a_plugin_taken_away_and_enabled_goes_last() -> None:
    found = config("""
profiles:
- plugins:
    filter: {disabled: [{name: TaintToleration}], enabled: [{name: TaintToleration}]}
""")

    assert names(found, "filter")[-1] == "TaintToleration"
    assert sorted(names(found, "filter")) == sorted(names(config(""), "filter"))


def test_multi_point_stands_for_every_hook_that_a_plugin_has() -> None:
    found = config("""
profiles:
- plugins:
    multiPoint:
      disabled: [{name: TaintToleration}]
      enabled: [{name: NodeAffinity, weight: 7}, {name: GpuBestFit}]
    score: {disabled: [{name: GpuBestFit}]}
""")
    weights = {entry.name: entry.weight for entry in found.profiles[0].plugins["score"].enabled}

    assert "TaintToleration" not in (*names(found, "filter"), *weights)
    assert weights["NodeAffinity"] == 7
    assert "GpuBestFit" not in weights
    assert "NodeAffinity" in names(found, "filter")


def test_a_profile_from_nothing() -> None:
    found = config("""
profiles:
- plugins:
    multiPoint:
      disabled: [{name: "*"}]
      enabled: [{name: PrioritySort}, {name: NodeResourcesFit}]
""")
    expected = {
        "order": ["PrioritySort"],
        **{hook: ["NodeResourcesFit"] for hook in ("filter", "score")},
    }

    assert {hook: some for hook in HOOKS if (some := names(found, hook))} == expected


def test_the_toy_scheduler_is_there_by_its_name_and_takes_its_option() -> None:
    found = config("""
profiles:
- schedulerName: toyscheduler
  pluginConfig: [{name: GpuBestFit, args: {rule: mostUsed}}]
- schedulerName: bayplan
""")
    assert names(found, "score") == ["GpuBestFit"]
    assert names(found, "score", at=1) == [name for name, _ in DEFAULT["score"]]

    world = World(profiles=profiles_of(found), small=2, large=8)
    world.submit("first", gpus=3, scheduler="toyscheduler")
    world.submit("second", gpus=1, scheduler="toyscheduler")

    assert world.running() == {"first": "large", "second": "large"}


def test_the_toy_scheduler_without_a_file() -> None:
    world = World(profiles=profiles_of(Configuration()), small=2, large=8)
    world.submit("first", gpus=3, scheduler="toyscheduler")
    world.submit("second", gpus=1, scheduler="toyscheduler")

    assert world.running() == {"first": "large", "second": "small"}
    assert DEFAULT_PROFILES[1].plugins == {
        "score": PluginSet((Enabled("GpuBestFit", 1),), (Enabled("*"),))
    }


def test_arguments_are_kube_schedulers() -> None:
    found = config("""
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy: {type: MostAllocated, resources: [{name: nvidia.com/gpu, weight: 5}]}
  - {name: NodePorts, args: {}}
""")
    world = World(profiles=profiles_of(found), a=8, b=8)
    world.submit("first", gpus=2)
    world.submit("second", gpus=2)

    assert len(set(world.running().values())) == 1


def affinity(**fields: Any) -> str:
    entry = {"name": "NodeAffinity", "args": {"addedAffinity": fields}}
    return yaml.safe_dump({"profiles": [{"pluginConfig": [entry]}]})


def term(key: str = "pool", operator: str = "In", *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_added_affinity_is_kube_schedulers() -> None:
    found = config(
        affinity(
            **{
                REQUIRED: {"nodeSelectorTerms": [term("pool", "In", "gpu")]},
                PREFERRED: [{"weight": 5, "preference": term("size", "Gt", "3")}],
            }
        )
    )
    (plugin,) = [
        each for _, each in profiles_of(found)[0].filters if isinstance(each, NodeAffinity)
    ]
    assert plugin._args == NodeAffinityArgs(
        added_required=(NodeTerm((Requirement("pool", "In", ("gpu",)),)),),
        added_preferred=((5, NodeTerm((Requirement("size", "Gt", ("3",)),))),),
    )

    world = World(profiles=profiles_of(found))
    world.node("a", labels={"pool": "cpu"})
    world.node("b", labels={"pool": "gpu", "size": "1"})
    world.node("c", labels={"pool": "gpu", "size": "9"})
    world.submit("train", gpus=1)

    assert world.running() == {"train": "c"}


def test_added_affinity_may_name_a_node() -> None:
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    found = config(affinity(**{REQUIRED: {"nodeSelectorTerms": [field]}}))
    world = World(profiles=profiles_of(found), a=8, b=8, c=8)
    world.submit("train", gpus=1)

    assert world.running() == {"train": "b"}
