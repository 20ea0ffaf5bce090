"""`bayplan manifests`: what to apply to a cluster so that Bayplan runs in it, as YAML."""

import re
from collections.abc import Iterable
from importlib.metadata import version
from importlib.resources import files
from string import Template

import click
import yaml

from bayplan.cli.shell import Commands

VERSION = version("bayplan").replace("+", "-")  # as labels and image tags may have it

_LABEL = re.compile(r"[a-z][-a-z0-9]{0,61}[a-z0-9]")  # two at least: y and n are YAML's too
_IMAGE = re.compile(r"[a-zA-Z0-9][\w.:/@-]*")
_USER = re.compile(r"[\w.:@/-]+")
_KEY = re.compile(r"(?:[a-z0-9][-a-z0-9.]*/)?\w(?:[-\w.]*\w)?", re.ASCII)
_SELECTOR = re.compile(r"(?:[a-z0-9][-a-z0-9.]*/)?\w(?:[-\w.]*\w)?=(?:\w(?:[-\w.]*\w)?)?", re.ASCII)

HELP = """Print what to apply to a cluster, as YAML.

\b
Examples:
  bayplan manifests rbac | kubectl apply -f -
  bayplan manifests deployment --image registry.example/bayplan:1.0 | kubectl apply -f -
"""
DEPLOYMENT_HELP = """A ConfigMap, a Deployment and its PodDisruptionBudget. Apply `rbac` too.

\b
Examples:
  bayplan manifests deployment | kubectl apply -f -
  bayplan manifests deployment --namespace batch --replicas 3 --image registry.example/bayplan:1.0
"""
STATIC_POD_HELP = """A pod for the kubelet of each control-plane node. It uses scheduler.conf there.

\b
Example:
  bayplan manifests static-pod > /etc/kubernetes/manifests/bayplan.yaml
"""
RBAC_HELP = """A ServiceAccount, and the roles with what the scheduler uses and nothing else.

\b
Examples:
  bayplan manifests rbac | kubectl apply -f -
  bayplan manifests rbac --user system:kube-scheduler | kubectl apply -f -   # for static pods
"""
AGENT_HELP = """The agent: a DaemonSet for the nodes with accelerators, its account and its role.

An agent that finds no devices ends, so choose its nodes with --node-selector. With --runtime-class
it runs under that RuntimeClass: NVIDIA's brings NVML. Where NVIDIA's runtime is the default one,
that is not needed.

\b
Examples:
  bayplan manifests agent --node-selector nvidia.com/gpu.present=true | kubectl apply -f -
  bayplan manifests agent --runtime-class nvidia --config-map bayplan | kubectl apply -f -
"""
POLICY_HELP = """Policies by which Bayplan alone writes assignments and inventories.

They refuse bayplan.dev/assignment, ids.bayplan.dev/* and vipu.bayplan.dev/* on pods and bindings
from anyone but the scheduler, the extender, the agent and every --user, and bayplan.dev/devices on
nodes from anyone but the agent. They are for the whole cluster, so name the users of other
installations too.

\b
Examples:
  bayplan manifests policy | kubectl apply -f -
  bayplan manifests policy --user system:kube-scheduler | kubectl apply -f -   # for static pods
  bayplan manifests policy --user system:serviceaccount:batch:second | kubectl apply -f -
"""
EXTENDER_HELP = """The extender for kube-scheduler, its rights, and a kube-scheduler that asks it.

Without --part all of it is printed. The part kube-scheduler is for clusters whose own one cannot be
configured; its image should be of the cluster's version.

\b
Examples:
  bayplan manifests extender --image registry.example/bayplan:1.0 | kubectl apply -f -
  bayplan manifests extender --part rbac --part config | kubectl apply -f -
  bayplan manifests extender --scheduler-name my-scheduler --part kube-scheduler
"""
VIPU_HELP = """A policy by which containers of pods that ask for IPUs find their partition.

Optional: it adds the variables that a pod could name itself. It needs Kubernetes 1.36.

\b
Examples:
  bayplan manifests vipu | kubectl apply -f -
  bayplan manifests vipu --scheduler-name bayplan --scheduler-name batch | kubectl apply -f -
"""
ELASTIC_HELP = """The controller of elastic jobs and its rights. Apply `crds` too.

\b
Examples:
  bayplan manifests elastic --image registry.example/bayplan:1.0 | kubectl apply -f -
  bayplan manifests elastic --part rbac | kubectl apply -f -
"""
CRDS_HELP = """The kinds PodGroup, ElasticJob and ElasticHorovodJob, for clusters without them.

\b
Example:
  bayplan manifests crds | kubectl apply -f -
"""
ALNAIR_HELP = """A configuration in the place of Alnair's vGPU scheduler, for `bayplan run`.

\b
Example:
  bayplan manifests alnair-config > bayplan.yaml
"""


def name_of(text: str) -> str:
    """A name that every kind of object can have, and that YAML reads as text."""
    if not _LABEL.fullmatch(text) or yaml.safe_load(text) != text:
        raise click.BadParameter(f"{text!r} is not a name such as bayplan")
    return text


def image_of(text: str) -> str:
    if not _IMAGE.fullmatch(text) or yaml.safe_load(text) != text:
        raise click.BadParameter(f"{text!r} is not an image such as bayplan:{VERSION}")
    return text


def user_of(text: str) -> str:
    if not _USER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a user such as system:kube-scheduler")
    return text


def selector_of(text: str) -> str:
    if not _SELECTOR.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a label such as nvidia.com/gpu.present=true")
    return text


def key_of(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a key such as graphcore.ai/ipu")
    return text


AGENT = "bayplan-agent"  # not the scheduler's name: both have an account and a role
EXTENDER = "bayplan-extender"
EXTENDER_PARTS = ("rbac", "guard", "config", "deployment", "service", "kube-scheduler")
ELASTIC, ELASTIC_PARTS = "bayplan-elastic", ("rbac", "deployment")
NAMESPACE = click.option(
    "--namespace", type=name_of, default="kube-system", show_default=True, metavar="NAME"
)
NAME = click.option(
    "--name",
    type=name_of,
    default="bayplan",
    show_default=True,
    metavar="NAME",
    help="Of every object, and of the lease.",
)
IMAGE = click.option(
    "--image", type=image_of, default=f"bayplan:{VERSION}", show_default=True, metavar="IMAGE"
)


@click.group(cls=Commands, help=HELP, invoke_without_command=True)
@click.pass_context
def manifests(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        kinds = ", ".join(manifests.list_commands(ctx))
        raise click.UsageError(f"Name a kind; there are: {kinds}", ctx)


@manifests.command(help=DEPLOYMENT_HELP)
@NAMESPACE
@NAME
@IMAGE
@click.option("--replicas", type=click.IntRange(1), default=2, show_default=True)
def deployment(namespace: str, name: str, image: str, replicas: int) -> None:
    values = {"namespace": namespace, "name": name, "image": image, "replicas": str(replicas)}
    click.echo(render("deployment", values), nl=False)


@manifests.command(name="static-pod", help=STATIC_POD_HELP)
@NAMESPACE
@NAME
@IMAGE
def static_pod(namespace: str, name: str, image: str) -> None:
    values = {"namespace": namespace, "name": name, "image": image}
    click.echo(render("static-pod", values), nl=False)


@manifests.command(help=RBAC_HELP)
@NAMESPACE
@NAME
@click.option(
    "--user", "users", type=user_of, multiple=True, metavar="USER", help="Who else gets the roles."
)
def rbac(namespace: str, name: str, users: tuple[str, ...]) -> None:
    subjects = [f"- kind: ServiceAccount\n  name: {name}\n  namespace: {namespace}"]
    subjects += [
        f'- apiGroup: rbac.authorization.k8s.io\n  kind: User\n  name: "{user}"' for user in users
    ]
    values = {"namespace": namespace, "name": name, "subjects": "\n".join(subjects)}
    click.echo(render("rbac", values), nl=False)


@manifests.command(help=AGENT_HELP)
@NAMESPACE
@click.option("--name", type=name_of, default=AGENT, show_default=True, metavar="NAME")
@IMAGE
@click.option(
    "--node-selector",
    "labels",
    type=selector_of,
    multiple=True,
    metavar="KEY=VALUE",
    help="Only on nodes with this label.  [default: on every Linux node]",
)
@click.option("--runtime-class", type=name_of, metavar="NAME", help="Such as nvidia.")
@click.option(
    "--config-map", type=name_of, metavar="NAME", help="With config.yaml, such as the scheduler's."
)
@click.option("--neuron", is_flag=True, help="Let it find Neuron devices: it sees /dev and /sys.")
@click.option(
    "--profile",
    is_flag=True,
    help="Let it tell what cards do: it sees the node's processes, /proc and /sys/fs/cgroup.",
)
def agent(
    labels: tuple[str, ...],
    runtime_class: str | None,
    config_map: str | None,
    neuron: bool,
    profile: bool,
    **values: str,
) -> None:
    wanted = dict(label.split("=", 1) for label in ("kubernetes.io/os=linux", *labels))
    values |= dict.fromkeys(("runtime", "argument", "mount", "volume", "sight"), "")
    values |= {"request": "64Mi", "limit": "128Mi"}
    values["selector"] = "\n".join(f'        "{key}": "{value}"' for key, value in wanted.items())
    if runtime_class:
        values["runtime"] = f"\n      runtimeClassName: {runtime_class}"
    if config_map:
        values["argument"] = "\n        - --config=/etc/bayplan/config.yaml"
        mount = "{name: config, mountPath: /etc/bayplan, readOnly: true}"
        values["mount"] = f"\n        - {mount}"
        values["volume"] = f"\n      - name: config\n        configMap: {{name: {config_map}}}"
    folders: dict[str, str] = {}
    if neuron:
        folders = {"dev": "dev", "sys": "sys"}  # names and small files; no device is opened
    if profile:
        values["argument"] += "\n        - --profile"
        values["sight"] = "\n      hostPID: true  # NVML leaves out processes that one cannot see"
        values |= {"request": "112Mi", "limit": "192Mi"}  # NVML stays: 45 MiB
        folders |= {"proc": "proc"} if neuron else {"proc": "proc", "cgroup": "sys/fs/cgroup"}
    if folders:
        values["argument"] += "\n        - --root=/host"
    for name, path in folders.items():
        mount = f"{{name: {name}, mountPath: /host/{path}, readOnly: true}}"
        values["mount"] += f"\n        - {mount}"
        of_node = f"{{path: /{path}, type: Directory}}"
        values["volume"] += f"\n      - name: {name}\n        hostPath: {of_node}"
    click.echo(render("agent", values), nl=False)


@manifests.command(help=EXTENDER_HELP)
@NAMESPACE
@click.option(
    "--name",
    type=name_of,
    default=EXTENDER,
    show_default=True,
    metavar="NAME",
    help="What the names of all objects begin with, and of the lease.",
)
@IMAGE
@click.option("--replicas", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--scheduler-name",
    "schedulers",
    type=name_of,
    multiple=True,
    default=("neuron-scheduler",),
    show_default=True,
    metavar="NAME",
    help="By which pods ask for the kube-scheduler; may be repeated.",
)
@click.option(
    "--scheduler-image",
    type=image_of,
    default="kube-scheduler:v1.36.3",
    show_default=True,
    metavar="IMAGE",
)
@click.option("--part", "parts", type=click.Choice(EXTENDER_PARTS), multiple=True)
def extender(
    replicas: int, schedulers: tuple[str, ...], parts: tuple[str, ...], **values: str
) -> None:
    profiles = (f"    - schedulerName: {each}" for each in dict.fromkeys(schedulers))
    values |= {"replicas": str(replicas), "profiles": "\n".join(profiles)}
    chosen = [part for part in EXTENDER_PARTS if not parts or part in parts]
    printed = (render(f"extender/{part}", values) for part in chosen)
    click.echo("---\n".join(printed), nl=False)


@manifests.command(help=ELASTIC_HELP)
@NAMESPACE
@click.option(
    "--name",
    type=name_of,
    default=ELASTIC,
    show_default=True,
    metavar="NAME",
    help="Of every object, and of the lease.",
)
@IMAGE
@click.option("--replicas", type=click.IntRange(1), default=2, show_default=True)
@click.option("--part", "parts", type=click.Choice(ELASTIC_PARTS), multiple=True)
def elastic(replicas: int, parts: tuple[str, ...], **values: str) -> None:
    values["replicas"] = str(replicas)
    chosen = [part for part in ELASTIC_PARTS if not parts or part in parts]
    printed = (render(f"elastic/{part}", values) for part in chosen)
    click.echo("---\n".join(printed), nl=False)


@manifests.command(help=POLICY_HELP)
@NAMESPACE
@click.option(
    "--name",
    type=name_of,
    default="bayplan",
    show_default=True,
    metavar="NAME",
    help="The scheduler's account, and what the policies' names begin with.",
)
@click.option(
    "--extender",
    type=name_of,
    default=EXTENDER,
    show_default=True,
    metavar="NAME",
    help="Its account.",
)
@click.option(
    "--agent", type=name_of, default=AGENT, show_default=True, metavar="NAME", help="Its account."
)
@click.option(
    "--user", "users", type=user_of, multiple=True, metavar="USER", help="Who else may assign."
)
def policy(namespace: str, name: str, extender: str, agent: str, users: tuple[str, ...]) -> None:
    if agent in (name, extender):
        raise click.BadParameter("the agent needs an account of its own", param_hint="--agent")
    space = f"system:serviceaccount:{namespace}"
    assigning = dict.fromkeys((f"{space}:{name}", f"{space}:{extender}", *users))
    values = {"name": name, "writers": _literals(assigning), "agent": f"{space}:{agent}"}
    click.echo(render("policy", values), nl=False)


@manifests.command(help=VIPU_HELP)
@click.option(
    "--name",
    type=name_of,
    default="bayplan",
    show_default=True,
    metavar="NAME",
    help="What the policy's name begins with.",
)
@click.option(
    "--scheduler-name",
    "schedulers",
    type=name_of,
    multiple=True,
    default=("bayplan",),
    show_default=True,
    metavar="NAME",
    help="Of whose pods; may be repeated.",
)
@click.option(
    "--key",
    "keys",
    type=key_of,
    multiple=True,
    default=("graphcore.ai/ipu",),
    show_default=True,
    metavar="KEY",
    help="A limit or annotation by which pods ask; may be repeated.",
)
def vipu(name: str, schedulers: tuple[str, ...], keys: tuple[str, ...]) -> None:
    values = {"name": name, "schedulers": _literals(schedulers), "keys": _literals(keys)}
    click.echo(render("vipu", values), nl=False)


@manifests.command(help=CRDS_HELP)
def crds() -> None:
    click.echo("---\n".join((render("crds", {}), render("elastic-crds", {}))), nl=False)


@manifests.command(name="alnair-config", help=ALNAIR_HELP)
def alnair_config() -> None:
    click.echo(render("alnair", {}), nl=False)


def _literals(words: Iterable[str]) -> str:
    """As a list in CEL has them."""
    return ", ".join(f"'{word}'" for word in words)


def render(kind: str, values: dict[str, str]) -> str:
    """The YAML of a kind. The values are checked; nothing is escaped here."""
    text = (files("bayplan") / "deploy" / f"{kind}.yaml").read_text(encoding="utf-8")
    return Template(text).substitute(values, version=VERSION)
