"""PodGroups on the wire, of all groups of the API that have them."""

from msgspec import Raw, field

from bayplan.kube import wire


class Versioned(wire.Wire):
    api_version: str | None = None


class GroupAnnotations(wire.Wire):
    near: str | None = field(default=None, name=wire.GANG_NEAR)
    within: str | None = field(default=None, name=wire.GANG_WITHIN)
    spread: str | None = field(default=None, name=wire.GANG_SPREAD)
    across: str | None = field(default=None, name=wire.GANG_ACROSS)


class GroupMetadata(wire.Metadata):
    annotations: GroupAnnotations | None = None


class GangPolicy(wire.Wire):
    min_count: wire.Int64 | None = None


class SchedulingPolicy(wire.Wire):
    basic: dict[str, Raw] | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(wire.Wire):
    key: str | None = None


class SchedulingConstraints(wire.Wire):
    topology: list[TopologyConstraint] | None = None


class GroupSpec(wire.Wire):
    """Of all groups of the API that have PodGroups; each has some of the fields."""

    min_member: wire.Int64 | None = None
    min_resources: wire.Quantities = None
    schedule_timeout_seconds: wire.Int64 | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None


class PodGroup(wire.Wire):
    """Its parts are decoded one by one: what is wrong in one of them is told to its members."""

    metadata: GroupMetadata | None = None
    spec: Raw = Raw(b"null")
    status: Raw = Raw(b"null")
