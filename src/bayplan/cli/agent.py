"""`bayplan agent`: the device plugin of a node, and its profiler."""

from typing import TYPE_CHECKING, Any

import click

from bayplan.cli.shell import BadInput, log_to_stderr

if TYPE_CHECKING:
    from bayplan.agent.inventory import Source
    from bayplan.core.model.vendors import Vendors

HELP = """Serve this node's devices to its kubelet as the scheduler has assigned them.

It runs on every node that has devices, beside the kubelet. It tells the cluster which devices there
are, steers the kubelet to those of a pod's assignment, and puts right what came out otherwise.

Devices are those of AWS Neuron if the machine has any, else those that NVML finds, unless
--inventory or --devices names them. --config is the scheduler's file; only its device classes are
read.

With --profile it also tells what the cards do, in annotations of its node and of the pods that use
them: from NVML, or from a file.

\b
Examples:
  bayplan agent --node gpu-1
  bayplan agent --node test-1 --kubeconfig admin.conf --devices nvidia=4x16384MiB
  bayplan agent --node test-2 --kubeconfig admin.conf --devices neuron=trn1.32xlarge
  bayplan agent --print-inventory
  bayplan agent --print-profile --profile-period 10
"""


@click.command(name="agent", help=HELP)
@click.option(
    "--node", envvar="NODE_NAME", metavar="NAME", help="This node.  [default: $NODE_NAME]"
)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster.")
@click.option(
    "--devices",
    "listed",
    metavar="CLASS=N[xSIZE]",
    multiple=True,
    help="The devices, such as nvidia=4x16384MiB, neuron=4x2cores, or neuron=inf2.48xlarge; "
    "once per class.",
)
@click.option("--inventory", metavar="FILE", help="The devices, as YAML or JSON.")
@click.option(
    "--instance-type",
    "machine",
    metavar="TYPE",
    default="",
    help="Of this machine, for Neuron devices, if it does not say so itself.",
)
@click.option(
    "--root",
    metavar="DIR",
    default="/",
    show_default=True,
    help="Where the machine's /dev, /sys and /proc are.",
)
@click.option(
    "--device-plugins",
    metavar="DIR",
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    help="Where the kubelet's sockets for device plugins are.",
)
@click.option(
    "--pod-resources",
    metavar="SOCKET",
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    help="Where the kubelet says what pods hold.",
)
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    default=":10272",
    show_default=True,
    help="For health and metrics.",
)
@click.option("--config", "config_file", metavar="FILE", help="A BayplanConfiguration.")
@click.option("--print-inventory", is_flag=True, help="Print the devices as JSON and exit.")
@click.option(
    "--print-profile",
    is_flag=True,
    help="Watch the cards for one period, print what would be told of the node, and exit.",
)
@click.option("--profile", is_flag=True, help="Tell what the cards do.")
@click.option(
    "--profile-file", metavar="FILE", help="What they do, as YAML or JSON; with it --profile is on."
)
@click.option(
    "--profile-period",
    "profile_s",
    type=click.FloatRange(1.0, 60.0),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="How often it is looked whether there is something new to tell.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def agent(
    node: str | None,
    kubeconfig: str | None,
    listed: tuple[str, ...],
    inventory: str | None,
    machine: str,
    root: str,
    device_plugins: str,
    pod_resources: str,
    listen: str,
    config_file: str | None,
    print_inventory: bool,
    print_profile: bool,
    profile: bool,
    profile_file: str | None,
    profile_s: float,
    verbose: bool,
) -> None:
    from pathlib import Path

    from bayplan.agent.config import BadConfig, load_vendors
    from bayplan.agent.inventory import BadInventory
    from bayplan.agent.samples import BadSample, FileSamples
    from bayplan.core.model.vendors import Vendors

    log_to_stderr(verbose)
    try:
        vendors = load_vendors(config_file) if config_file else Vendors()
        source = _named(listed, inventory, vendors) or _found(vendors, root, machine)
        if print_inventory:
            _print(source)
            return
        if profile_file:
            FileSamples(profile_file).read()
        if print_profile:
            _print_profile(profile_file, profile_s)
            return
        if not node:
            raise BadInput("which node is this? Give --node, or set $NODE_NAME")
        settings = {
            "node": node,
            "device_plugins": Path(device_plugins),
            "pod_resources": pod_resources,
            "listen": listen,
            "root": Path(root),
            "profile": profile or bool(profile_file),
            "profile_file": profile_file or "",
            "profile_s": profile_s,
        }
        _serve(settings, (source, vendors), kubeconfig)
    except (BadConfig, BadInventory, BadSample) as error:
        raise BadInput(str(error)) from None


def _named(listed: tuple[str, ...], inventory: str | None, vendors: "Vendors") -> "Source | None":
    from bayplan.agent.inventory import FileSource, ListedSource

    if listed and inventory:
        raise BadInput("--devices and --inventory both name the devices; give one of them")
    if listed:
        return ListedSource(listed, vendors)
    return FileSource(inventory, vendors) if inventory else None


def _found(vendors: "Vendors", root: str, machine: str) -> "Source":
    from pathlib import Path

    from bayplan.agent.neuron import MachineSource, NeuronSource
    from bayplan.agent.nvml import NvmlSource

    neuron = NeuronSource(vendors.classes["neuron"], Path(root), machine)
    return MachineSource(neuron, NvmlSource())


def _print(source: "Source") -> None:
    from bayplan.core.model.devices import write_inventory

    click.echo(write_inventory(source.discover()))


def _print_profile(file: str | None, seconds: float) -> None:
    import asyncio
    import json

    from bayplan.agent.profile import node_annotations, watched_for
    from bayplan.agent.samples import source_of

    found = asyncio.run(watched_for(source_of(file or ""), seconds))
    click.echo(json.dumps(node_annotations(found), indent=2))


def _serve(
    settings: dict[str, Any],
    devices: tuple["Source", "Vendors"],
    kubeconfig: str | None,
) -> None:
    import asyncio
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters of it we tell ourselves
    try:
        from bayplan.agent.service import Settings, serve
    except ModuleNotFoundError as error:
        raise BadInput(
            f"the agent needs the package {error.name}; install bayplan[agent]"
        ) from None
    from bayplan.agent.status import BadAddress
    from bayplan.kube.credentials import CredentialsError
    from bayplan.kube.transport import ApiError

    try:
        # not uvloop: it is a MiB more, and there is nothing here that it makes faster
        asyncio.run(serve(Settings(**settings), *devices, kubeconfig))
    except (CredentialsError, BadAddress, ApiError) as error:
        raise BadInput(str(error)) from None
