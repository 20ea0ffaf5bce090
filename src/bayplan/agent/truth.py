"""What pods were given against what they really hold: the differences, and what puts them right.

Pure: pods and the kubelet's account in, annotations out. What the kubelet gave is the truth. Only
entries of devices and cores that we serve are touched. Another node's assignment says nothing about
this one, so nothing of it stays; one of a newer version is left alone, because what it says beyond
our understanding would be lost.

A pod that carries what Neuron's extension writes has that put right with it; and it is told there
that it has got its devices, as by the vendor's own plugin. That is one patch for a pod at most.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Literal

from msgspec import Struct

from bayplan.agent.pods import Key, Place, Pod
from bayplan.agent.units import Cell, Units, is_served, units_of
from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    Assignment,
    Devices,
    Held,
    HeldDevice,
    TooLong,
    Unknown,
    write_assignment,
)
from bayplan.core.model.dialects import NEURON_ALLOCATED
from bayplan.core.model.holdings import plain_lists
from bayplan.core.model.neuron import annotations_of_neuron
from bayplan.core.model.vendors import Vendors

Places = Mapping[Place, frozenset[str]]
Account = Mapping[Key, Places]  # by pod: what the kubelet says that it holds
Named = tuple[str, str]  # a device: the resource, and its id
Case = tuple[object, str]  # something to report: what tells it apart, and words


class Served(Struct, frozen=True):
    """The node's devices by class, and with them the resources that we serve."""

    node: str
    vendors: Vendors
    classes: Mapping[str, Devices]

    def units(self, resource: str) -> Units | None:
        """By id, if the resource is one of ours."""
        device_class, kind = self.vendors.resources.get(resource, (None, None))
        if device_class is None or kind is None or not is_served(kind):
            return None
        found = self.classes.get(device_class.name)
        return None if found is None else units_of(kind, found)

    def cells(self, resource: str, ids: Iterable[str]) -> set[Cell]:
        """What these devices, or parts of devices, are made of."""
        device_class, kind = self.vendors.resources.get(resource, (None, None))
        if device_class is None or kind is None:
            return {(resource, id) for id in ids}
        units = units_of(kind, self.classes.get(device_class.name, Devices(())))
        found: set[Cell] = set()
        for id in ids:
            if id in units:
                found |= {(device_class.name, core) for core in units[id].cores}
            else:
                found.add((resource, id))
        return found


class Correction(Struct, frozen=True):
    """Annotations that make true what a pod says. None: it should not be there."""

    pod: Pod
    annotations: dict[str, str | None]
    # It said nothing about these devices; it named others; or it is told that it has got them.
    what: Literal["written", "swapped", "marked"]


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
    taken: set[Cell] = set()
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
        taken |= {cell for place, ids in places.items() for cell in served.cells(place[1], ids)}
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
        if ids and served.units(place[1]) is not None and place[0] in pod.containers
    }


def named(pods: Iterable[Pod], node: str) -> set[Named]:
    """The devices of all their assignments."""
    return {each for pod in pods for held in pod.entries(node) for each in _devices(held)}


def name(key: Key) -> str:
    return "/".join(key)


class _Change(Struct, frozen=True):
    """Of what a pod says."""

    pod: Pod
    entries: Mapping[Place, Held]  # of its assignment
    changed: dict[Place, Held]  # of them, those that should be otherwise
    got: Places  # what it really has


def _entries(pod: Pod, served: Served) -> dict[Place, Held]:
    return {(held.container, held.resource): held for held in pod.entries(served.node)}


def _put_right(pod: Pod, places: Places, served: Served, findings: Findings) -> list[Held]:
    """Adds what corrects the pod; gives the entries that were wrong."""
    case = _Change(pod, _entries(pod, served), {}, places)
    wrong: list[Held] = []
    for place, ids in sorted(places.items()):
        before = case.entries.get(place)
        after = _entry(place, ids, before, served)
        if after is None:
            words = f"{name(pod.key)} holds {', '.join(sorted(ids))}, not all devices of this node"
            findings.drift.append(((pod.uid, place, ids), words))
        elif before is None or not _same(before, after):
            case.changed[place] = after
            wrong += [before] if before else []
    _correct(case, served, findings)
    return wrong


def _move(
    waiting: list[Pod],
    vacated: list[Held],
    taken: set[Cell],
    served: Served,
    findings: Findings,
) -> None:
    """Pods that still wait for devices that another one got have those that it was given."""
    promised = {
        cell
        for pod in waiting
        for held in pod.entries(served.node)
        for cell in _cells(held, served)
    }
    for pod in waiting:
        case = _Change(pod, _entries(pod, served), {}, {})
        for place, held in case.entries.items():
            if pod.is_newer or not _cells(held, served) & taken:
                continue
            for other in vacated:
                if (
                    other.resource == held.resource
                    and len(other.devices) == len(held.devices)
                    and not _cells(other, served) & (taken | promised)
                ):
                    vacated.remove(other)
                    ids = frozenset(device.id for device in other.devices)
                    after = _entry(place, ids, other, served)
                    if after is not None:
                        case.changed[place] = after
                    break
        _correct(case, served, findings)


def _correct(case: _Change, served: Served, findings: Findings) -> None:
    pod, changed = case.pod, case.changed
    after = {**case.entries, **changed}
    annotations = dict(_neuron(case, after.values(), served.vendors))
    if changed:
        try:
            assignment = Assignment(served.node, tuple(after.values()))
            annotations[ASSIGNMENT] = write_assignment(assignment)
        except TooLong as error:
            findings.refused.append(((pod.uid, "long"), f"{name(pod.key)}: {error}"))
            return
        ours = (held for held in after.values() if held.resource in served.vendors.resources)
        lists = plain_lists(ours, served.vendors)
        for container in dict.fromkeys(container for container, _ in changed):
            if container in lists:
                annotations[f"{IDS}/{container}"] = lists[container]
        is_new = not any(place in case.entries for place in changed)
        correction = Correction(pod, annotations, "written" if is_new else "swapped")
        findings.corrections.append(correction)
    elif annotations:
        findings.corrections.append(Correction(pod, annotations, "marked"))


def _neuron(
    case: _Change, after: Iterable[Held], vendors: Vendors
) -> Iterable[tuple[str, str | None]]:
    """What is wrong with the keys of Neuron's extension that the pod carries. None of our patches
    adds one, and when devices were given is the scheduler's to say."""
    carried = case.pod.neuron
    right = annotations_of_neuron(after, vendors, 0.0) if carried else {}
    if not right:
        return
    classes = [vendors.resources[resource][0] for _, resource in case.got]
    has_them = any("neuron" in each.dialects for each in classes)
    right[NEURON_ALLOCATED] = "true" if has_them else carried.get(NEURON_ALLOCATED, "")
    for key, text in carried.items():
        if text != right.get(key):
            yield key, right.get(key)


def _entry(place: Place, ids: frozenset[str], before: Held | None, served: Served) -> Held | None:
    """None: one of them is neither here nor was it before, so its index cannot be told."""
    here = served.units(place[1]) or {}
    indexes = {device.id: device.index for device in before.devices} if before else {}
    indexes |= {id: here[id].held.index for id in ids if id in here}
    if not ids <= indexes.keys():
        return None
    devices = (HeldDevice(id, indexes[id], 1) for id in sorted(ids, key=lambda id: indexes[id]))
    return Held(place[0], place[1], served.node, tuple(devices))


def _same(one: Held, other: Held) -> bool:
    return one.pool == other.pool and set(one.devices) == set(other.devices)


def _devices(held: Held) -> set[Named]:
    return {(held.resource, device.id) for device in held.devices}


def _cells(held: Held, served: Served) -> set[Cell]:
    return served.cells(held.resource, (device.id for device in held.devices))


def _unusable(pod: Pod, node: str) -> Iterable[Case]:
    found = pod.assignment
    if isinstance(found, Unknown):
        why = f"cannot be used: {found.why}"
    elif found is not None and found.node != node:
        why = f"is for node {found.node}, and not used on {node}"
    else:
        return
    yield (pod.uid, why), f"the assignment of {name(pod.key)} {why}"
