"""The configuration of `bayplan elastic`: a small file of its own, read strictly.

Errors name the file, the path in it and the nearest valid word.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct

from bayplan.elastic.memory import Patience
from bayplan.elastic.planner import Settings
from bayplan.elastic.sizes import Policy
from bayplan.kube.terms import located

KIND, VERSION = "BayplanElasticConfiguration", "bayplan.dev/v1alpha1"
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


class BadConfig(ValueError):
    """A file that cannot be used: its name, and what is wrong with it."""


class Waits(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How long what is waited for; see `Patience`."""

    confirm_seconds: Seconds = 10.0
    retry_seconds: Seconds = 30.0
    retry_most_seconds: Seconds = 300.0
    failure_seconds: Seconds = 10.0
    failure_most_seconds: Seconds = 360.0


class LeaderElection(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The times are kube-scheduler's."""

    leader_elect: bool = False
    lease_seconds: Annotated[int, Meta(ge=2, le=3600)] = 15
    renew_seconds: Seconds = 10.0
    retry_seconds: Seconds = 2.0
    resource_name: Name = "bayplan-elastic"
    resource_namespace: Name = "kube-system"


class Configuration(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str = VERSION
    kind: str = KIND
    allocator: Literal["best", "faithful"] = "best"
    threshold: Annotated[float, Meta(ge=0, le=10)] = 0.05
    patience: Waits = Waits()
    leader_election: LeaderElection = LeaderElection()
    listen: str = ":10273"

    @property
    def settings(self) -> Settings:
        waits = self.patience
        return Settings(
            Policy(self.allocator, self.threshold),
            Patience(
                waits.confirm_seconds,
                waits.retry_seconds,
                waits.retry_most_seconds,
                waits.failure_seconds,
                waits.failure_most_seconds,
            ),
        )


def load(path: str) -> Configuration:
    try:
        content = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    return read(content, path)


def read(content: Any, path: str) -> Configuration:
    if not isinstance(content, dict):
        raise BadConfig(f"{path}: should be a mapping of fields")
    if (content.get("apiVersion"), content.get("kind")) != (VERSION, KIND):
        raise BadConfig(f"{path}: apiVersion and kind should be {VERSION} and {KIND}")
    _must_be_known(content, Configuration, path)
    for field, kind in (("patience", Waits), ("leaderElection", LeaderElection)):
        if isinstance(content.get(field), dict):
            _must_be_known(content[field], kind, f"{path}: {field}")
    try:
        config = msgspec.convert(content, Configuration)
    except msgspec.ValidationError as error:
        why, field = located(error)
        raise BadConfig(f"{path}: {field}: {why}") from None
    election = config.leader_election
    if not election.lease_seconds > election.renew_seconds > election.retry_seconds * 1.2:
        why = "leaseSeconds must be more than renewSeconds, and that more than 1.2 retrySeconds"
        raise BadConfig(f"{path}: leaderElection: {why}")
    return config


def _must_be_known(content: dict[Any, Any], kind: type[Struct], where: str) -> None:
    known = list(kind.__struct_encode_fields__)
    for field in content:
        if field not in known:
            close = get_close_matches(str(field), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            raise BadConfig(f"{where}: no such field as {field!r}; {hint}")
