"""A pod's spec read into its row key: what it asks of one node, whatever its labels are.

`Wrong` is raised with the field's path. Nothing here knows other pods, nor the pod's name.
"""

from msgspec.structs import replace

from bayplan.core.model.numa import is_zonal
from bayplan.core.model.pods import DeviceAsk, HostPort, Phase, RowKey, ZoneAsk
from bayplan.core.model.quantity import BadQuantity, counted, parse_json
from bayplan.core.model.requests import Ask, PodAsk, TooManyResources, asked
from bayplan.core.model.selectors import NodeTerm, Toleration
from bayplan.core.model.vendors import Vendors
from bayplan.kube import wire
from bayplan.kube.terms import Wrong, node_term, preferred_nodes

MOST_ASKED = 1 << 16  # devices that an annotation can ask for
MOST_CLASSES = 5  # of devices in one pod; each has its reasons


def amounts(quantities: wire.Quantities, field: str) -> dict[str, int]:
    """Exact amounts by resource."""
    result = {}
    for name, token in (quantities or {}).items():
        try:
            nano = parse_json(bytes(token))
        except BadQuantity as bad:
            raise Wrong(f"{field}[{name}]", str(bad)) from None
        if nano < 0:
            raise Wrong(f"{field}[{name}]", "it is negative")
        result[name] = nano
    return result


def _requested(resources: wire.Resources | None, field: str) -> dict[str, int]:
    if resources is None or not resources.requests:
        return {}
    return amounts(resources.requests, f"{field}.resources.requests")


def _ask(container: wire.Container, seen: wire.ContainerStatus | None, field: str) -> Ask:
    requests = _requested(container.resources, field)
    restartable = container.restart_policy == "Always"
    if seen is None or seen.resources is None:
        return Ask(requests, restartable)
    where = f"status.containerStatuses[{seen.name}]"
    allocated = amounts(seen.allocated_resources, f"{where}.allocatedResources")
    return Ask(requests, restartable, _requested(seen.resources, where), allocated)


def _pod_ask(spec: wire.PodSpec, status: wire.PodStatus) -> PodAsk:
    seen = {s.name: s for s in status.container_statuses or ()}
    seen.update((s.name, s) for s in status.init_container_statuses or ())
    whole = Ask(_requested(spec.resources, "spec"))
    if status.resources is not None:
        allocated = amounts(status.allocated_resources, "status.allocatedResources")
        whole = Ask(whole.requests, False, _requested(status.resources, "status"), allocated)
    resizes = [c.reason for c in status.conditions or () if c.type == "PodResizePending"]
    return PodAsk(
        containers=tuple(
            _ask(c, seen.get(c.name), f"spec.containers[{i}]")
            for i, c in enumerate(spec.containers or ())
        ),
        init_containers=tuple(
            _ask(c, seen.get(c.name), f"spec.initContainers[{i}]")
            for i, c in enumerate(spec.init_containers or ())
        ),
        whole=whole,
        overhead=amounts(spec.overhead, "spec.overhead"),
        infeasible=resizes[:1] == ["Infeasible"],
    )


def row_key(
    spec: wire.PodSpec, status: wire.PodStatus, vendors: Vendors, bound: bool, insists: bool
) -> RowKey:
    """The row key; a pod that `insists` goes to the node it names or nowhere."""
    try:
        figures = asked(_pod_ask(spec, status), bound)
    except TooManyResources as many:
        raise Wrong("spec.containers", str(many)) from None
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    aligned = _aligned(spec, vendors, status.qos_class == "Guaranteed")
    return RowKey(
        requests=tuple(each for each in figures.requests if each[0] not in vendors.partitions),
        scored=figures.scored,
        scored_placed=figures.scored_placed,
        node_selector=tuple(sorted((spec.node_selector or {}).items())),
        required=_required_nodes(affinity),
        preferred=_preferred_nodes(affinity, bound),
        has_preferred=affinity is not None and affinity.preferred is not None,
        tolerations=tuple(
            Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "")
            for t in spec.tolerations or ()
        ),
        ports=_ports(spec),
        images=_images(spec),
        containers=len(spec.init_containers or ()) + len(spec.containers or ()),
        node_name=(spec.node_name or "") if insists else "",
        resource_claims=bool(spec.resource_claims),
        devices=_devices(spec, vendors),
        aligned=aligned,
        guaranteed=bool(aligned) and status.qos_class == "Guaranteed",
    )


def _aligned(spec: wire.PodSpec, vendors: Vendors, guaranteed: bool) -> tuple[ZoneAsk, ...]:
    """What a kubelet aligns: devices, and of Guaranteed pods memory and whole cpus. It aligns no
    cpus and no memory where resources are given for the pod as a whole."""
    zonal = guaranteed and spec.resources is None
    found: list[ZoneAsk] = []
    for containers in (spec.init_containers, spec.containers):
        for container in containers or ():
            asked = container.resources.requests if container.resources is not None else None
            ours = {
                name: counted(name, parse_json(bytes(raw)))
                for name, raw in (asked or {}).items()
                if (zonal if is_zonal(name) else "/" in name and "kubernetes.io/" not in name)
                and name not in vendors.partitions
            }
            amounts = tuple(
                (name, ours[name])
                for name in sorted(ours)
                if ours[name] and not (name == "cpu" and ours[name] % 1000)
            )
            phase: Phase = "main"
            if containers is spec.init_containers:
                phase = "sidecar" if container.restart_policy == "Always" else "init"
            if amounts:
                found.append(ZoneAsk(amounts, phase))
    return tuple(found)


def _devices(spec: wire.PodSpec, vendors: Vendors) -> tuple[DeviceAsk, ...]:
    """What containers ask for of classes of devices, in the order in which they start."""
    found: list[DeviceAsk] = []
    for field, containers in (
        ("spec.initContainers", spec.init_containers),
        ("spec.containers", spec.containers),
    ):
        for i, container in enumerate(containers or ()):
            requests = container.resources.requests if container.resources is not None else None
            ours = {
                name: raw for name, raw in (requests or {}).items() if name in vendors.resources
            }
            if not ours:
                continue
            phase: Phase = "main"
            if containers is spec.init_containers:
                phase = "sidecar" if container.restart_policy == "Always" else "init"
            for name, nano in sorted(amounts(ours, f"{field}[{i}].resources.requests").items()):
                device_class, resource = vendors.resources[name]
                amount = counted(name, nano)
                if amount:
                    found.append(
                        DeviceAsk(
                            container.name or "",
                            name,
                            device_class.name,
                            resource.kind,
                            amount,
                            resource.unit_mib,
                            phase,
                            device_class.model == "contiguous",
                        )
                    )
    if len({ask.device_class for ask in found}) > MOST_CLASSES:
        raise Wrong("spec.containers", f"more than {MOST_CLASSES} classes of devices")
    if len({ask.device_class for ask in found if ask.kind == "partition"}) > 1:
        raise Wrong("spec.containers", "partitions of more than one class")
    return tuple(found)


def with_partition(
    row: RowKey, asked: dict[str, str], spec: wire.PodSpec, vendors: Vendors
) -> RowKey:
    """With what annotations ask for, where no container does."""
    if row.partitions:
        return row
    key, text = next(iter(asked.items()))
    device_class, resource = vendors.annotations[key]
    plain = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_ASKED))
    if not plain or not 0 < int(text) < MOST_ASKED or len(asked) > 1:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise Wrong(f"metadata.annotations[{key}]", f'"{shown}" is not one number of devices')
    container = next((each.name for each in spec.containers or ()), None) or ""
    ask = DeviceAsk(container, resource.name, device_class.name, resource.kind, int(text))
    return replace(row, devices=(*row.devices, ask))


def _required_nodes(affinity: wire.NodeAffinity | None) -> tuple[NodeTerm, ...] | None:
    if affinity is None or affinity.required is None:
        return None
    return tuple(map(node_term, affinity.required.node_selector_terms or ()))


def _preferred_nodes(
    affinity: wire.NodeAffinity | None, bound: bool
) -> tuple[tuple[int, NodeTerm], ...]:
    if affinity is None or not affinity.preferred:
        return ()
    try:
        return preferred_nodes(affinity.preferred, f"spec.affinity.nodeAffinity.{wire.PREFERRED}")
    except Wrong:
        if bound:  # it has its place, and kube-scheduler looks no more
            return ()
        raise


def _ports(spec: wire.PodSpec) -> tuple[HostPort, ...]:
    """The host ports of everything that runs for as long as the pod does."""
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    ports = {
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or "0.0.0.0")
        for container in (*sidecars, *(spec.containers or ()))
        for port in container.ports or ()
        if port.host_port is not None and port.host_port > 0
    }
    return tuple(sorted(ports))


def _images(spec: wire.PodSpec) -> tuple[str, ...]:
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    names = [container.image or "" for container in containers]
    names += [v.image.reference or "" for v in spec.volumes or () if v.image is not None]
    return tuple(n if n.rfind(":") > n.rfind("/") else f"{n}:latest" for n in names)
