"""The configuration: one frozen tree, and one reader that says what is wrong and where.

It reads like KubeSchedulerConfiguration (docs/configuration.md). A file is checked as a whole
before anything starts: plugins exist, arguments fit them, times follow from each other.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct, inspect
from msgspec.structs import replace

from bayplan.core.engine.profile import Enabled, PluginConfig, PluginSet, Profile, ProfileConfig
from bayplan.core.model import quantity
from bayplan.core.model.groups import Patience
from bayplan.core.model.vendors import DeviceClass, Vendors
from bayplan.core.plugins.registry import DEFAULT, installed
from bayplan.scheduler.deviceconfig import check_devices, check_pools
from bayplan.scheduler.pluginsets import resolve
from bayplan.scheduler.strict import PARSE, Fault, build, shown

API_VERSION = "bayplan.dev/v1alpha1"
KIND = "BayplanConfiguration"
KUBE_SCHEDULER = "KubeSchedulerConfiguration"
JITTER = 1.2  # client-go's: a renewal may come so much later than the retry period

NEVER, NEVER_S = "never", 1e9  # in the place of a duration; JSON has no infinity
DECISIVE = 2000  # one point of such a score outweighs all the others together


def _by_devices(name: str, policy: str) -> ProfileConfig:
    """The devices decide, and the default scores what is equal to them; docs/alnair.md."""
    scores = dict(DEFAULT["score"]) | {"Devices": DECISIVE}
    enabled = tuple(Enabled(plugin, weight) for plugin, weight in scores.items())
    return ProfileConfig(
        name,
        {"score": PluginSet(enabled, (Enabled("*"),))},
        (PluginConfig("Devices", {"policy": policy}),),
    )


def _by_use() -> ProfileConfig:
    """The default and UtilSched, with the weight that Alnair gives it; docs/utilisation.md."""
    filters = tuple(Enabled(plugin) for plugin, _ in (*DEFAULT["filter"], ("UtilSched", 0)))
    scores = tuple(Enabled(*entry) for entry in (*DEFAULT["score"], ("UtilSched", 300)))
    off = (Enabled("*"),)
    return ProfileConfig(
        "utilsched", {"filter": PluginSet(filters, off), "score": PluginSet(scores, off)}
    )


DEFAULT_PROFILES = (
    ProfileConfig("bayplan"),
    ProfileConfig(  # docs/toyscheduler.md
        "toyscheduler",
        {"score": PluginSet(enabled=(Enabled("GpuBestFit", 1),), disabled=(Enabled("*"),))},
    ),
    _by_devices("alnair-cost-saving", "binpack"),
    _by_devices("alnair-high-performance", "spread"),
    _by_use(),
)

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):(\d{1,5})")


class ConfigError(ValueError):
    """A configuration that cannot be used: the file, the path in it, and what is wrong."""


def seconds(text: Any) -> float:
    """A duration as Kubernetes writes it: 15s, 1m30s, 500ms."""
    if text in (0, "0") and not isinstance(text, bool):
        return 0.0
    parts = re.findall(_PART, text) if isinstance(text, str) else []
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError(f"{shown(text)} is not a duration such as 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def seconds_or_never(text: Any) -> float:
    """A duration, or the word never."""
    return NEVER_S if text == NEVER else seconds(text)


def size(text: Any) -> int:
    """A number of bytes, written as a quantity: 100Mi."""
    try:
        found = quantity.value(quantity.parse(str(text)))
    except quantity.BadQuantity:
        found = 0
    if found < 1 or isinstance(text, bool):
        raise ValueError(f"{shown(text)} is not a size such as 100Mi")
    return found


def address(text: Any) -> str:
    """host:port; without a host, on every interface."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[2]) > 65_535:
        raise ValueError(f"{shown(text)} is not an address such as :10270 or 127.0.0.1:10271")
    return str(text)


Seconds = Annotated[float, Meta(extra={PARSE: seconds})]
SecondsOrNever = Annotated[float, Meta(extra={PARSE: seconds_or_never})]
Bytes = Annotated[int, Meta(extra={PARSE: size})]
Address = Annotated[str, Meta(extra={PARSE: address})]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class LeaderElection(Struct, frozen=True, rename="camel"):
    """The times are kube-scheduler's."""

    leader_elect: bool = False
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0
    resource_name: Name = "bayplan"
    resource_namespace: Namespace = "kube-system"


class ClientConnection(Struct, frozen=True, rename="camel"):
    kubeconfig: str | None = None
    connections: Count = 64


class JournalSettings(Struct, frozen=True, rename="camel"):
    path: str | None = None  # without one there is no journal
    max_size: Bytes = 100 << 20
    keep: Annotated[int, Meta(ge=0)] = 5


class Tls(Struct, frozen=True, rename="camel"):
    """Without a certificate there is no TLS; with a CA for clients, they need one too."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = msgspec.field(default="", name="clientCAFile")


class ApiAccess(Struct, frozen=True, rename="camel"):
    """Who may ask questions. Without a token or a CA for clients, only programs of this machine."""

    token_file: str = ""
    tls: Tls = Tls()


class Gangs(Struct, frozen=True, rename="camel"):
    """How long gangs wait for what."""

    timeout: SecondsOrNever = 300.0  # running in part; a PodGroup may have its own
    reserve_after: SecondsOrNever = 300.0  # refused and next in line; 0: at once


class ExtenderSettings(Struct, frozen=True, rename="camel"):
    """What `bayplan extender` serves kube-scheduler with."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 12_345
    policy: Literal["binpack", "spread"] = "binpack"  # of nodes and devices
    preemption: bool = True  # for devices that kube-scheduler does not count
    tls: Tls = Tls()
    max_body_size: Bytes = 32 << 20
    request_timeout: Seconds = 10.0


class Pool(Struct, frozen=True, rename="camel"):
    """Devices behind a V-IPU controller."""

    controller: str  # host:port:label=value; the label is that of its head nodes
    timeout: Seconds = 10.0  # of each call
    at_once: Count = 16  # calls
    ca_file: str = msgspec.field(default="", name="caFile")  # with one, over TLS
    user_id: str = ""
    access_key_file: str = ""

    @property
    def parts(self) -> tuple[str, int, tuple[str, str]]:
        """Host, port and label."""
        host, port, label = self.controller.rsplit(":", 2)
        key, _, value = label.partition("=")
        return host, int(port), (key, value)


class Prometheus(Struct, frozen=True, rename="camel"):
    """Where DCGM's measures are, for UtilSched. Without a server there are only annotations."""

    server: str = ""  # http://host:port, with a path before /api where it has one
    period: Seconds = 30.0
    timeout: Seconds = 10.0  # of each query
    token_file: str = ""
    ca_file: str = msgspec.field(
        default="", name="caFile"
    )  # of a server with https; else the system's


class Configuration(Struct, frozen=True, rename="camel"):
    """What a file says, or would say if it said everything. Times are in seconds."""

    api_version: str = API_VERSION
    kind: str = KIND
    profiles: tuple[ProfileConfig, ...] = DEFAULT_PROFILES
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    max_in_flight: Count = 512
    bind_workers: Count = 64
    listen: Address = ":10270"
    api: Address = "127.0.0.1:10271"
    api_access: ApiAccess = ApiAccess()
    questions: Literal["apart", "inline"] = "apart"  # who answers the large ones
    journal: JournalSettings = JournalSettings()
    check_live_every: Seconds = 3600.0  # 0: never
    pod_initial_backoff_seconds: Count = 1
    pod_max_backoff_seconds: Count = 10
    gangs: Gangs = Gangs()
    devices: tuple[DeviceClass, ...] = ()  # beside those that are known, or in their place
    pools: tuple[Pool, ...] = ()  # of IPUs, which are then given as partitions
    cluster_name: str = ""  # what controllers know us by; empty: the uid of kube-system
    extender: ExtenderSettings = ExtenderSettings()
    prometheus: Prometheus = Prometheus()

    @property
    def vendors(self) -> Vendors:
        return Vendors.known_and(self.devices, controllers=bool(self.pools))

    @property
    def patience(self) -> Patience:
        return Patience(self.gangs.timeout, self.gangs.reserve_after)

    @property
    def partition_grace_s(self) -> float:
        """After which nothing that was sent about a partition can still be on its way."""
        longest = max((pool.timeout for pool in self.pools), default=0.0)
        return self.leader_election.lease_duration + longest


def load(path: str | Path) -> Configuration:
    try:
        text = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return read(text, str(path))


def read(text: str | bytes, name: str) -> Configuration:
    """`name` is what the text is called in errors."""
    try:
        return _checked(_document(text))
    except Fault as fault:
        raise ConfigError(" ".join(f"{name}: {fault}".split())) from None


def profiles_of(config: Configuration) -> list[Profile]:
    known = installed()
    return [Profile(profile, known) for profile in config.profiles]


class _Loader(yaml.SafeLoader):
    """Refuses a field that is there twice, as the API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise Fault("", f"line {line}: the field {key.value} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _document(text: str | bytes) -> dict[str, Any]:
    try:
        documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except Fault:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:  # the latter two: odd times, odd keys
        raise Fault("", f"not valid YAML: {error}") from None
    except RecursionError:
        raise Fault("", "not valid YAML: nested too deep") from None
    if len(documents) != 1:
        raise Fault("", f"should hold one configuration, but holds {len(documents) or 'none'}")
    if not isinstance(documents[0], dict):
        raise Fault("", f"should be a mapping of fields, but is {shown(documents[0])}")
    return documents[0]


def _checked(document: dict[str, Any]) -> Configuration:
    _check_kind(document)
    config = build(document, Configuration, "")
    _check_times(config.leader_election)
    if config.pod_max_backoff_seconds < config.pod_initial_backoff_seconds:
        first = config.pod_initial_backoff_seconds
        raise Fault("podMaxBackoffSeconds", f"is less than podInitialBackoffSeconds, {first}")
    if config.api == config.listen and not config.api.endswith(":0"):
        raise Fault("api", f"{config.api} is the address of listen too")
    if config.gangs.timeout <= 0:
        raise Fault("gangs.timeout", "should be longer than 0s, or never")
    check_devices(config.devices, config.vendors)
    check_pools([pool.controller for pool in config.pools], config.vendors)
    for i, pool in enumerate(config.pools):
        if pool.timeout <= 0:
            raise Fault(f"pools[{i}].timeout", "should be longer than 0s")
    _check_prometheus(config.prometheus)
    _check_tls(config.extender.tls, "extender.tls")
    _check_tls(config.api_access.tls, "apiAccess.tls")
    return replace(config, profiles=_resolved(config.profiles))


def _check_prometheus(prometheus: Prometheus) -> None:
    server = prometheus.server
    if server and not _URL.fullmatch(server):
        raise Fault(
            "prometheus.server", f"{shown(server)} is not an address such as http://host:9090"
        )
    for name, value in (("period", prometheus.period), ("timeout", prometheus.timeout)):
        if value <= 0:
            raise Fault(f"prometheus.{name}", "should be longer than 0s")


def _check_tls(tls: Tls, path: str) -> None:
    if bool(tls.cert_file) != bool(tls.key_file):
        missing = "keyFile" if tls.cert_file else "certFile"
        raise Fault(f"{path}.{missing}", "is missing: a certificate and its key go together")
    if tls.client_ca_file and not tls.cert_file:
        raise Fault(f"{path}.certFile", "is missing: clients are only asked over TLS")


def _check_kind(document: dict[str, Any]) -> None:
    version, kind = document.get("apiVersion"), document.get("kind")
    if kind == KUBE_SCHEDULER:
        raise Fault("", _how_to_convert(document))
    for field, found, wanted in (("apiVersion", version, API_VERSION), ("kind", kind, KIND)):
        if found is None:
            raise Fault(field, f"is missing; write {field}: {wanted}")
        if found != wanted:
            raise Fault(field, f"should be {wanted}, not {shown(found)}")


def _how_to_convert(document: dict[str, Any]) -> str:
    info = inspect.type_info(Configuration)
    assert isinstance(info, inspect.StructType)
    ours = {field.encode_name for field in info.fields}
    gone = ", ".join(field for field in document if field not in ours)
    return (
        f"this is kube-scheduler's own configuration; for Bayplan change apiVersion to "
        f"{API_VERSION} and kind to {KIND}, give each profile a schedulerName of its own"
        + (f", and remove {gone}" if gone else "")
    )


def _check_times(election: LeaderElection) -> None:
    lease, renew, retry = election.lease_duration, election.renew_deadline, election.retry_period
    if lease != int(lease) or lease < 1:  # a Lease counts whole seconds
        raise Fault("leaderElection.leaseDuration", f"{lease:g}s is not a number of whole seconds")
    if lease <= renew:
        why = f"{lease:g}s should be longer than renewDeadline, {renew:g}s"
        raise Fault("leaderElection.leaseDuration", why)
    if lease - renew < 1:  # a bind that was sent at the deadline must be over before the lease is
        why = f"{renew:g}s should be at least 1s shorter than leaseDuration, {lease:g}s"
        raise Fault("leaderElection.renewDeadline", why)
    if retry <= 0:
        raise Fault("leaderElection.retryPeriod", "should be longer than 0s")
    if renew <= JITTER * retry:
        why = f"{renew:g}s should be longer than {JITTER} times retryPeriod, {JITTER * retry:g}s"
        raise Fault("leaderElection.renewDeadline", why)


def _resolved(profiles: tuple[ProfileConfig, ...]) -> tuple[ProfileConfig, ...]:
    if not profiles:
        raise Fault("profiles", "name at least one profile")
    try:
        known = installed()
    except (ValueError, ImportError, AttributeError) as error:
        raise Fault("", f"a plugin of another package cannot be used: {error}") from None
    started = {profile.scheduler_name: profile for profile in DEFAULT_PROFILES}
    names: list[str] = []
    found: list[ProfileConfig] = []
    for i, given in enumerate(profiles):
        path, name = f"profiles[{i}]", given.scheduler_name
        if not name or name in names:
            why = f"profiles[{names.index(name)}] has this name too" if name else "is empty"
            raise Fault(f"{path}.schedulerName", why)
        names.append(name)
        found.append(resolve(given, started.get(name, ProfileConfig()), path, known))
        if found[i].plugins.get("order") != found[0].plugins.get("order"):
            raise Fault(
                f"{path}.plugins.queueSort", "should be as in profiles[0]: one queue for all"
            )
    return tuple(found)
