"""What pods were given against what they really hold: the differences, and what puts them right.

Pure: pods and the kubelet's account in, annotations out. What the kubelet gave is the truth. Only
entries of whole devices that we serve are touched. Another node's assignment says nothing about
this one, so nothing of it stays; one of a newer version is left alone, because what it says beyond
our understanding would be lost.
"""

from collections.abc import Iterable, Mapping, Set

from msgspec import Struct

from bayplan.agent.pods import Key, Place, Pod
from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    Assignment,
    Device,
    Devices,
    Held,
    HeldDevice,
    TooLong,
    Unknown,
    write_assignment,
)
from bayplan.core.model.holdings import plain_lists
from bayplan.core.model.vendors import Vendors

Places = Mapping[Place, frozenset[str]]
Account = Mapping[Key, Places]  # by pod: what the kubelet says that it holds
Named = tuple[str, str]  # a device: the resource, and its id
Case = tuple[object, str]  # something to report: what tells it apart, and words


class Served(Struct, frozen=True):
    """The node's devices by class, and with them the resources of whole devices that we serve."""

    node: str
    vendors: Vendors
    classes: Mapping[str, Devices]

    def devices(self, resource: str) -> dict[str, Device] | None:
        """By id, if the resource is one of ours."""
        device_class, kind = self.vendors.resources.get(resource, (None, None))
        if device_class is None or kind is None or kind.kind != "whole":
            return None
        found = self.classes.get(device_class.name)
        return None if found is None else {device.id: device for device in found.devices}


class Correction(Struct, frozen=True):
    """Annotations that make a pod's assignment true."""

    pod: Pod
    annotations: dict[str, str]
    is_new: bool  # it said nothing about these devices before


class Findings(Struct, frozen=True):
    corrections: list[Correction]
    drift: list[Case]
    refused: list[Case]  # assignments that are not used


def compare(
    pods: list[Pod], account: Account, served: Served, lately: Set[Named] = frozenset()
) -> Findings:
    """Pods that are in one of the two only are not judged here. Those that ended hold nothing.

    `lately`: devices of assignments that were corrected just now. Who got them may be corrected
    later, and until then nobody else seems to have been given them.
    """
    findings = Findings([], [], [])
    pods = [pod for pod in pods if not pod.has_ended]
    given = lately | named(pods, served.node)
    taken: set[Named] = set()
    vacated: list[Held] = []
    waiting: list[Pod] = []
    for pod in pods:
        findings.refused.extend(_unusable(pod, served.node))
        places = real_places(pod, account, served)
        if not places:
            if pod.is_waiting:
                waiting.append(pod)
            continue
        held = {(place[1], id) for place, ids in places.items() for id in ids}
        taken |= held
        for resource, id in sorted(held - given):
            words = f"{resource} {id} is used by {name(pod.key)}, and was given to nobody"
            findings.drift.append(((pod.uid, resource, id), words))
        if not pod.is_newer:
            vacated += _put_right(pod, places, served, findings)
    _move(waiting, vacated, taken, served, findings)
    return findings


def real_places(pod: Pod, account: Account, served: Served) -> dict[Place, frozenset[str]]:
    """What a pod holds of what we serve. The kubelet's account leaves out init containers that
    end; the pod's status has them."""
    listed = account.get(pod.key)
    if listed is None:
        return {}
    return {
        place: ids
        for place, ids in {**pod.told, **listed}.items()
        if ids and served.devices(place[1]) is not None and place[0] in pod.containers
    }


def named(pods: Iterable[Pod], node: str) -> set[Named]:
    """The devices of all their assignments."""
    return {each for pod in pods for held in pod.entries(node) for each in _devices(held)}


def name(key: Key) -> str:
    return "/".join(key)


def _put_right(pod: Pod, places: Places, served: Served, findings: Findings) -> list[Held]:
    """Adds what corrects the pod; gives the entries that were wrong."""
    entries = {(held.container, held.resource): held for held in pod.entries(served.node)}
    wrong: list[Held] = []
    changed: dict[Place, Held] = {}
    for place, ids in sorted(places.items()):
        before = entries.get(place)
        after = _entry(place, ids, before, served)
        if after is None:
            words = f"{name(pod.key)} holds {', '.join(sorted(ids))}, not all devices of this node"
            findings.drift.append(((pod.uid, place, ids), words))
        elif before is None or not _same(before, after):
            changed[place] = after
            wrong += [before] if before else []
    _correct(pod, entries, changed, served, findings)
    return wrong


def _move(
    waiting: list[Pod],
    vacated: list[Held],
    taken: set[Named],
    served: Served,
    findings: Findings,
) -> None:
    """Pods that still wait for devices that another one got have those that it was given."""
    promised = named(waiting, served.node)
    for pod in waiting:
        entries = {(held.container, held.resource): held for held in pod.entries(served.node)}
        changed: dict[Place, Held] = {}
        for place, held in entries.items():
            if pod.is_newer or not _devices(held) & taken:
                continue
            for other in vacated:
                if (
                    other.resource == held.resource
                    and len(other.devices) == len(held.devices)
                    and not _devices(other) & (taken | promised)
                ):
                    vacated.remove(other)
                    ids = frozenset(device.id for device in other.devices)
                    after = _entry(place, ids, other, served)
                    if after is not None:
                        changed[place] = after
                    break
        _correct(pod, entries, changed, served, findings)


def _correct(
    pod: Pod,
    entries: Mapping[Place, Held],
    changed: Mapping[Place, Held],
    served: Served,
    findings: Findings,
) -> None:
    if not changed:
        return
    after = {**entries, **changed}
    try:
        text = write_assignment(Assignment(served.node, tuple(after.values())))
    except TooLong as error:
        findings.refused.append(((pod.uid, "long"), f"{name(pod.key)}: {error}"))
        return
    annotations = {ASSIGNMENT: text}
    ours = (held for held in after.values() if held.resource in served.vendors.resources)
    lists = plain_lists(ours, served.vendors)
    for container in dict.fromkeys(container for container, _ in changed):
        if container in lists:
            annotations[f"{IDS}/{container}"] = lists[container]
    is_new = not any(place in entries for place in changed)
    findings.corrections.append(Correction(pod, annotations, is_new))


def _entry(place: Place, ids: frozenset[str], before: Held | None, served: Served) -> Held | None:
    """None: one of them is neither here nor was it before, so its index cannot be told."""
    here = served.devices(place[1]) or {}
    known = {device.id: device for device in before.devices} if before else {}
    found: list[Device | HeldDevice] = [
        device for id in ids if (device := here.get(id) or known.get(id)) is not None
    ]
    if len(found) < len(ids):
        return None
    found.sort(key=lambda device: device.index)
    devices = tuple(HeldDevice(device.id, device.index, 1) for device in found)
    return Held(place[0], place[1], served.node, devices)


def _same(one: Held, other: Held) -> bool:
    return one.pool == other.pool and set(one.devices) == set(other.devices)


def _devices(held: Held) -> set[Named]:
    return {(held.resource, device.id) for device in held.devices}


def _unusable(pod: Pod, node: str) -> Iterable[Case]:
    found = pod.assignment
    if isinstance(found, Unknown):
        why = f"cannot be used: {found.why}"
    elif found is not None and found.node != node:
        why = f"is for node {found.node}, and not used on {node}"
    else:
        return
    yield (pod.uid, why), f"the assignment of {name(pod.key)} {why}"
