"""What is wrong with a configuration is one sentence with the path in the file."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some

from bayplan.core.engine.engine import Engine
from bayplan.core.plugins import registry
from bayplan.scheduler.config import ConfigError, load, profiles_of, read

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def wrong(text: str, head: str = HEAD) -> str:
    with pytest.raises(ConfigError) as caught:
        read(head + text, "file")
    said = str(caught.value)
    assert said.startswith("file: ")
    assert "\n" not in said
    return said.removeprefix("file: ")


def profile(**fields: Any) -> str:
    """A file with one profile, after one that is fine."""
    return yaml.safe_dump({"profiles": [{}, {"schedulerName": "second", **fields}]})


def score(**sets: Any) -> dict[str, Any]:
    return {"plugins": {"score": sets}}


def affinity(**fields: Any) -> str:
    entry = {"name": "NodeAffinity", "args": {"addedAffinity": fields}}
    return yaml.safe_dump({"profiles": [{"pluginConfig": [entry]}]})


def term(key: str = "pool", operator: str = "In", *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("leaderElecton: {}", "leaderElecton: no such field; did you mean leaderElection?"),
        (
            "leaderElection: {leaseDurations: 1s}",
            "leaderElection.leaseDurations: no such field; did you mean leaseDuration?",
        ),
        (
            "clientConnection: {qps: 50}",
            "clientConnection.qps: no such field; there are: connections, kubeconfig",
        ),
        ("devices: [{name: A}]", 'devices[0].name: "A" is not a name that Kubernetes allows here'),
        ("devices: [{name: nvidia}]", "devices[0].resources: name at least one"),
        (
            "devices: [{name: a, resources: [{name: x/y, published: true}]}]",
            "devices[0].resources[0].published: whole devices are served by a device plugin",
        ),
        (
            "devices: [{name: a, resources: [{name: x/y, unitMib: 7}]}]",
            "devices[0].resources[0].unitMib: a resource of kind whole has none",
        ),
        (
            "devices: [{name: a, resources: [{name: x/y, timestamp: bayplan.dev/assignment}]}]",
            "devices[0].resources[0].timestamp: bayplan.dev/assignment is a key of our own",
        ),
        (
            "devices: [{name: a, resources: [{name: x/y}], dialects: [alnair]}]",
            "devices[0].dialects[0]: alnair tells of the devices of class nvidia already",
        ),
        ("devices: [{name: a}, {name: a}]", "devices[1].name: devices[0] has it too"),
        ("devices: [{names: a}]", "devices[0].names: no such field; did you mean name?"),
        (
            "devices: [{name: a, resources: [{name: gpu}]}]",
            'devices[0].resources[0].name: "gpu" is not a name that Kubernetes allows here',
        ),
        (
            "devices: [{name: a, resources: [{name: x/y, kind: memoryy}]}]",
            'devices[0].resources[0].kind: no such value as "memoryy"; did you mean memory?',
        ),
        (
            "devices: [{name: a, resources: [{name: x/y}, {name: x/z}]}]",
            "devices[0].resources: x/y and x/z are both whole devices",
        ),
        (
            "devices: [{name: a, resources: [{name: nvidia.com/gpu}]}]",
            "devices[0].resources[0].name: nvidia.com/gpu is of class nvidia already",
        ),
        (
            "devices: [{name: a, ids: uuid}]",
            'devices[0].ids: no such value as "uuid"; did you mean id?',
        ),
        ("maxInFlight: many", 'maxInFlight: should be a whole number, not "many"'),
        ("maxInFlight: 0", "maxInFlight: should be at least 1, not 0"),
        ("maxInFlight: true", "maxInFlight: should be a whole number, not true"),
        ("journal: {keep: -1}", "journal.keep: should be at least 0, not -1"),
        ("journal: {maxSize: big}", 'journal.maxSize: "big" is not a size such as 100Mi'),
        ("journal: /var/log", 'journal: should be a mapping, not "/var/log"'),
        ("journal: {path: 5}", "journal.path: should be text, not 5"),
        (
            "leaderElection: {leaderElect: maybe}",
            'leaderElection.leaderElect: should be true or false, not "maybe"',
        ),
        (
            "leaderElection: {leaseDuration: 15}",
            "leaderElection.leaseDuration: 15 is not a duration such as 15s, 1m30s or 500ms",
        ),
        (
            "leaderElection: {leaseDuration: 10s}",
            "leaderElection.leaseDuration: 10s should be longer than renewDeadline, 10s",
        ),
        (
            "leaderElection: {leaseDuration: 12.5s}",
            "leaderElection.leaseDuration: 12.5s is not a number of whole seconds",
        ),
        (
            "leaderElection: {retryPeriod: 9s}",
            "leaderElection.renewDeadline: 10s should be longer than 1.2 times retryPeriod, 10.8s",
        ),
        (
            "leaderElection: {retryPeriod: 0s}",
            "leaderElection.retryPeriod: should be longer than 0s",
        ),
        (
            "leaderElection: {resourceName: My_Lease}",
            'leaderElection.resourceName: "My_Lease" is not a name that Kubernetes allows here',
        ),
        (
            "leaderElection: {resourceNamespace: a.b}",
            'leaderElection.resourceNamespace: "a.b" is not a name that Kubernetes allows here',
        ),
        (
            "listen: 10270",
            "listen: 10270 is not an address such as :10270 or 127.0.0.1:10271",
        ),
        (
            "listen: localhost:99999",
            'listen: "localhost:99999" is not an address such as :10270 or 127.0.0.1:10271',
        ),
        ("listen: :1\napi: :1", "api: :1 is the address of listen too"),
        (
            "podInitialBackoffSeconds: 11",
            "podMaxBackoffSeconds: is less than podInitialBackoffSeconds, 11",
        ),
        ("maxInFlight: 1\nmaxInFlight: 2", "line 4: the field maxInFlight is there twice"),
        ("profiles: []", "profiles: name at least one profile"),
        ("profiles: {}", "profiles: should be a list, not a mapping"),
        ("profiles: [bayplan]", 'profiles[0]: should be a mapping, not "bayplan"'),
        ("profiles: [{}, {}]", "profiles[1].schedulerName: profiles[0] has this name too"),
        ('profiles: [{schedulerName: ""}]', "profiles[0].schedulerName: is empty"),
        ("profiles: [{schedulerName: on}]", "profiles[0].schedulerName: should be text, not true"),
        (
            "profiles: [{picker: nowhere}]",
            "profiles[0].picker: 'nowhere' is not of the form module:function",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_path(text: str, says: str) -> None:
    assert wrong(text) == says


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"plugins": {"scores": {}}},
            "plugins.scores: no such extension point; did you mean score?",
        ),
        (
            {"plugins": {"score": {"enable": []}}},
            "plugins.score.enable: no such field; did you mean enabled?",
        ),
        (
            score(enabled=[{"name": "ImageLocality"}, {"name": "NodeResourcesFt"}]),
            "plugins.score.enabled[1].name: no plugin NodeResourcesFt; "
            "did you mean NodeResourcesFit?",
        ),
        (score(enabled=[{}]), "plugins.score.enabled[0].name: is missing"),
        (
            score(enabled=[{"name": "ImageLocality", "weight": 0}]),
            "plugins.score.enabled[0].weight: should be at least 1, not 0",
        ),
        (
            score(enabled=[{"name": "ImageLocality"}, {"name": "ImageLocality"}]),
            "plugins.score.enabled[1].name: ImageLocality is named twice",
        ),
        (
            score(enabled=[{"name": "ImageLocality", "weight": 10**9}]),
            "plugins.score: the weights are too large together",
        ),
        (
            score(disabled=[{"name": "NodeAffinty"}]),
            "plugins.score.disabled[0].name: NodeAffinty is not enabled there; "
            "did you mean NodeAffinity?",
        ),
        (
            {"plugins": {"permit": {"disabled": [{"name": "NodeName"}]}}},
            "plugins.permit.disabled[0].name: NodeName is not enabled there",
        ),
        (
            {"plugins": {"queueSort": {"disabled": [{"name": "*"}]}}},
            "plugins.order: enable exactly one plugin",
        ),
        (
            {
                "plugins": {
                    "order": {"disabled": [{"name": "*"}], "enabled": [{"name": "NamespaceShare"}]}
                }
            },
            "plugins.queueSort: should be as in profiles[0]: one queue for all",
        ),
        (
            {"plugins": {"preEnqueue": {"enabled": [{"name": "NodeName"}]}}},
            "plugins.preEnqueue.enabled[0].name: NodeName does not take part there; "
            "those that do: SchedulingGates",
        ),
        (
            {"pluginConfig": [{"name": "NodeAfinity"}]},
            "pluginConfig[0].name: NodeAfinity is not enabled; did you mean NodeAffinity?",
        ),
        (
            {"pluginConfig": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]},
            "pluginConfig[1].name: NodeAffinity is named twice",
        ),
        (
            {"pluginConfig": [{"name": "NodeName", "args": {"a": 1}}]},
            "pluginConfig[0].args: NodeName takes no arguments",
        ),
        (
            {
                "pluginConfig": [
                    {
                        "name": "NodeResourcesFit",
                        "args": {"scoringStrategy": {"type": "MostAlocated"}},
                    }
                ]
            },
            'pluginConfig[0].args.scoringStrategy.type: no such value as "MostAlocated"; '
            "did you mean MostAllocated?",
        ),
        (
            {
                "pluginConfig": [
                    {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"resources": []}}}
                ]
            },
            "pluginConfig[0].args: scoringStrategy.resources: name at least one resource",
        ),
        (
            {"pluginConfig": [{"name": "NodeAffinity", "args": {"addedAfinity": {}}}]},
            "pluginConfig[0].args.addedAfinity: no such field; did you mean addedAffinity?",
        ),
    ],
)
def test_what_is_wrong_in_a_profile_is_told_by_its_place(fields: dict[str, Any], says: str) -> None:
    assert wrong(profile(**fields)) == f"profiles[1].{says}"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({REQUIRED: {}}, f"{REQUIRED}.nodeSelectorTerms: name at least one term"),
        (
            {REQUIRED: {"nodeSelectorTerms": [term("pool", "In", "a"), {}]}},
            f"{REQUIRED}.nodeSelectorTerms[1]: an empty term matches no node",
        ),
        (
            {REQUIRED: {"nodeSelectorTerms": [term("pool", "in", "a")]}},
            f"{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].operator: "
            "'in' is not an operator",
        ),
        (
            {REQUIRED: {"nodeSelectorTerms": [{"matchField": []}]}},
            f"{REQUIRED}.nodeSelectorTerms[0].matchField: no such field; did you mean matchFields?",
        ),
        (
            {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "spec", "operator": "In", "values": ["x"]}]}
                    ]
                }
            },
            f"{REQUIRED}.nodeSelectorTerms[0].matchFields: no node has such a field",
        ),
        (
            {PREFERRED: [{"weight": 101, "preference": term("a", "Exists")}]},
            f"{PREFERRED}[0].weight: should be 1 to 100, not 101",
        ),
        (
            {PREFERRED: [{"weight": 1, "preference": term("a", "Gt", "x")}]},
            f"{PREFERRED}[0].preference.matchExpressions[0].values: Gt takes one integer",
        ),
        (
            {PREFERRED: [{"weight": 1}]},
            f"{PREFERRED}[0].preference: an empty term matches no node",
        ),
    ],
)
def test_a_broken_added_affinity_is_refused(fields: dict[str, Any], says: str) -> None:
    assert wrong(affinity(**fields)) == f"profiles[0].pluginConfig[0].args.addedAffinity.{says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "should hold one configuration, but holds none"),
        (f"{HEAD}---\n{HEAD}", "should hold one configuration, but holds 2"),
        ("[1]", "should be a mapping of fields, but is a list"),
        ("a: [", "not valid YAML: "),
        ("\0", "not valid YAML: "),
        ("[" * 10_000, "not valid YAML: "),
        ("a: !!python/object:os.system {}", "not valid YAML: "),
        ("[1]: 2", "not valid YAML: "),
        ("a: 2001-99-99", "not valid YAML: "),
        ("kind: x", "apiVersion: is missing; write apiVersion: bayplan.dev/v1alpha1"),
        (
            "apiVersion: bayplan.dev/v2\nkind: x",
            'apiVersion: should be bayplan.dev/v1alpha1, not "bayplan.dev/v2"',
        ),
        (HEAD.replace("Bayplan", "Bay"), 'kind: should be BayplanConfiguration, not "BayConfig'),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            "parallelism: 16\nprofiles: []\nextenders: []\n",
            "this is kube-scheduler's own configuration; for Bayplan change apiVersion to "
            "bayplan.dev/v1alpha1 and kind to BayplanConfiguration, give each profile a "
            "schedulerName of its own, and remove parallelism, extenders",
        ),
    ],
)
def test_other_files_are_refused(text: str, says: str) -> None:
    assert wrong(text, head="").startswith(says)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: No such file or directory$"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match=r": Is a directory$"):
        load(tmp_path)


def test_a_foreign_plugin_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("Theirs", "no_such_module:Theirs", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))

    assert wrong("") == (
        "a plugin of another package cannot be used: No module named 'no_such_module'"
    )


WHOLE = """
profiles:
- schedulerName: toyscheduler
  plugins:
    multiPoint: {disabled: [{name: NodePorts}], enabled: [{name: NodeAffinity, weight: 7}]}
    score: {disabled: [{name: "*"}], enabled: [{name: GpuBestFit, weight: 3}]}
  pluginConfig:
  - {name: GpuBestFit, args: {rule: mostUsed}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]
leaderElection: {leaderElect: true, leaseDuration: 15s, resourceName: x}
clientConnection: {kubeconfig: x, connections: 1}
journal: {path: x, maxSize: 1Mi}
listen: :0
"""
WORDS = some.sampled_from(
    ["score", "filter", "name", "NodeAffinity", "NodeName", "*", "1s", "args"]
)
ODD = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | WORDS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(some.data())
def test_whatever_stands_in_a_file_it_is_read_or_refused_in_a_sentence(
    data: some.DataObject,
) -> None:
    """One value anywhere in a good file is replaced, added or taken away."""
    document = yaml.safe_load(HEAD + WHOLE)
    at = document
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(some.sampled_from(keys) if keys else some.just("name"))
        inside = at[key] if keys else None
        if not isinstance(inside, dict | list) or data.draw(some.integers(0, 3)) == 0:
            break
        at = inside
    if isinstance(at, dict) and data.draw(some.booleans()):
        at.pop(key, None)
        key = data.draw(WORDS)
    if isinstance(at, list) and not at:
        at.append(None)
        key = 0
    at[key] = data.draw(ODD)
    text = yaml.safe_dump(document, allow_unicode=True)
    try:
        found = read(text, "file")
    except ConfigError as error:
        said = str(error)
    else:
        Engine(profiles_of(found))
        said = "file: fine"
    assert said.startswith("file: ")
    assert "\n" not in said


@pytest.mark.parametrize("text", [b"\xff\xfe\xff", b"a: \xff", b"\x80" * 9])
def test_bytes_that_are_no_text_are_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^file: not valid YAML: "):
        read(text, "file")
