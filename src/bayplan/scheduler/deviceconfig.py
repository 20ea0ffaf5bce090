"""Whether the classes of devices in a configuration make sense together."""

import re
from collections.abc import Sequence

from bayplan.core.model.requests import is_counted
from bayplan.core.model.vendors import DeviceClass, Resource, Vendors
from bayplan.kube.wire import PodAnnotations
from bayplan.scheduler.strict import Fault

_CONTROLLER = re.compile(
    r"([A-Za-z0-9][-A-Za-z0-9.]*|\[[0-9A-Fa-f:.]+\]):(\d{1,5}):[-A-Za-z0-9_./]+=[-A-Za-z0-9_.]*"
)


def check_devices(given: Sequence[DeviceClass], vendors: Vendors) -> None:
    """Every resource means devices of one class."""
    names = [each.name for each in given]
    for i, each in enumerate(given):
        if each.name in names[:i]:
            raise Fault(f"devices[{i}].name", f"devices[{names.index(each.name)}] has it too")
    owner: dict[str, str] = {}
    speaks: dict[str, str] = {}  # dialect: class
    for each in vendors.classes.values():
        at = f"devices[{names.index(each.name)}]" if each.name in names else f"class {each.name}"
        for k, dialect in enumerate(each.dialects):
            if speaks.setdefault(dialect, each.name) != each.name:
                why = f"{dialect} tells of the devices of class {speaks[dialect]} already"
                raise Fault(f"{at}.dialects[{k}]", why)
        for j, resource in enumerate(each.resources):
            if resource.name in owner:
                why = f"{resource.name} is of class {owner[resource.name]} already"
                raise Fault(f"{at}.resources[{j}].name", why)
            owner[resource.name] = each.name
            _check_resource(resource, each, f"{at}.resources[{j}]")
        if not each.resources:
            raise Fault(f"{at}.resources", "name at least one")
        for kind, what in (("whole", "whole devices"), ("core", "cores")):
            served = [r.name for r in each.resources if r.kind == kind and r.served]
            if len(served) > 1:
                raise Fault(f"{at}.resources", f"{' and '.join(served)} are both {what}")
        _check_model(each, at)


def check_pools(controllers: Sequence[str], vendors: Vendors) -> None:
    """Each is another controller, and says which nodes reach it; one class is theirs."""
    classes = [each.name for each in vendors.classes.values() if each.model == "partition"]
    if controllers and len(classes) != 1:
        raise Fault("devices", f"with pools, one class has the model partition, not {classes}")
    if classes and not controllers:
        raise Fault("pools", f"class {classes[0]} has the model partition: name a controller")
    names: list[str] = []
    for i, text in enumerate(controllers):
        found = _CONTROLLER.fullmatch(text)
        if found is None or not 0 < int(found[2]) < 65_536:
            why = f"{text} should be host:port:label=value, such as vipu:8090:vipu-ctrl=vctl1"
            raise Fault(f"pools[{i}].controller", why)
        name = f"{found[1].lower()}:{int(found[2])}"
        if name in names:
            raise Fault(f"pools[{i}].controller", f"pools[{names.index(name)}] is {name} too")
        names.append(name)


def _check_model(each: DeviceClass, at: str) -> None:
    types = [instance.type for instance in each.instances]
    for i, name in enumerate(types):
        if name in types[:i]:
            raise Fault(f"{at}.instances[{i}].type", f"instances[{types.index(name)}] has it too")
    if types and each.model != "contiguous":
        raise Fault(f"{at}.instances", "are for the model contiguous")
    if each.annotation and each.model != "partition":
        raise Fault(f"{at}.annotation", "is for the model partition")
    if each.annotation in PodAnnotations.__struct_encode_fields__:
        raise Fault(f"{at}.annotation", f"{each.annotation} means something else already")
    if each.device_path and each.device_path.count("{index}") != 1:
        raise Fault(f"{at}.devicePath", f"{each.device_path} should hold {{index}} once")


def _check_resource(resource: Resource, each: DeviceClass, at: str) -> None:
    if (resource.kind == "core") > (each.model == "contiguous"):
        raise Fault(f"{at}.kind", "cores are for the model contiguous")
    if (resource.kind == "partition") != (each.model == "partition"):
        raise Fault(f"{at}.kind", "partitions are for the model partition, and it has no others")
    if each.model == "contiguous" and resource.kind not in ("whole", "core"):
        raise Fault(f"{at}.kind", "the model contiguous has whole devices and cores only")
    if not is_counted(resource.name):
        raise Fault(f"{at}.name", f"{resource.name} is not a name that pods can ask for")
    if resource.kind == "whole" and resource.published:
        raise Fault(f"{at}.published", "whole devices are served by a device plugin")
    if resource.kind != "memory" and resource.unit_mib != 1:
        raise Fault(f"{at}.unitMib", f"a resource of kind {resource.kind} has none")
    if "bayplan.dev/" in resource.timestamp:
        raise Fault(f"{at}.timestamp", f"{resource.timestamp} is a key of our own")
