"""Kubernetes' binary form of requests, which kubectl sends for a few of its commands.

`kubectl create configmap`, `kubectl drain` and `kubectl auth can-i` send no JSON. What they send is
turned into JSON here, by the field numbers of the messages that such commands use. Answers are
always JSON, which kubectl takes as well. A message or field that is not in the table is refused.
"""

import base64
from collections.abc import Iterator
from typing import Any

from bayplan.local import problems
from bayplan.local.discovery import ABSENT
from bayplan.local.metadata import timestamp
from bayplan.local.store import Json

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DIGIT_BITS, _MORE = 7, 0x80

# A field is its number and `name:type`. A type is a scalar (text, number, flag, bytes) or another
# message; [] is a list, {} a map by text. A scalar that is its type's zero was not set, but for
# those with !, which can be set to zero.
_META = "1 metadata:ObjectMeta"
_MESSAGES = {
    "ObjectMeta": "1 name:text, 2 generateName:text, 3 namespace:text, 4 selfLink:text, 5 uid:text,"
    " 6 resourceVersion:text, 7 generation:number, 8 creationTimestamp:Time,"
    " 9 deletionTimestamp:Time, 10 deletionGracePeriodSeconds:number!, 11 labels:{}text,"
    " 12 annotations:{}text, 13 ownerReferences:[]OwnerReference, 14 finalizers:[]text",
    "OwnerReference": "1 kind:text, 3 name:text, 4 uid:text, 5 apiVersion:text, 6 controller:flag!,"
    " 7 blockOwnerDeletion:flag!",
    "ObjectReference": "1 kind:text, 2 namespace:text, 3 name:text, 4 uid:text, 5 apiVersion:text,"
    " 6 resourceVersion:text, 7 fieldPath:text",
    "LocalObjectReference": "1 name:text",
    "LabelSelector": "1 matchLabels:{}text, 2 matchExpressions:[]LabelRequirement",
    "LabelRequirement": "1 key:text, 2 operator:text, 3 values:[]text",
    "Condition": "1 type:text, 2 status:text, 3 observedGeneration:number,"
    " 4 lastTransitionTime:Time, 5 reason:text, 6 message:text",
    "Preconditions": "1 uid:text!, 2 resourceVersion:text!",
    "DeleteOptions": "1 gracePeriodSeconds:number!, 2 preconditions:Preconditions,"
    " 3 orphanDependents:flag!, 4 propagationPolicy:text!, 5 dryRun:[]text",
    "Namespace": f"{_META}, 2 spec:NamespaceSpec, 3 status:NamespaceStatus",
    "NamespaceSpec": "1 finalizers:[]text",
    "NamespaceStatus": "1 phase:text",
    "ConfigMap": f"{_META}, 2 data:{{}}text, 3 binaryData:{{}}bytes, 4 immutable:flag!",
    "Secret": f"{_META}, 2 data:{{}}bytes, 3 type:text, 4 stringData:{{}}text, 5 immutable:flag!",
    "ServiceAccount": f"{_META}, 2 secrets:[]ObjectReference,"
    " 3 imagePullSecrets:[]LocalObjectReference, 4 automountServiceAccountToken:flag!",
    "Service": f"{_META}, 2 spec:ServiceSpec, 3 status:ServiceStatus",
    "ServiceSpec": "1 ports:[]ServicePort, 2 selector:{}text, 3 clusterIP:text, 4 type:text,"
    " 5 externalIPs:[]text, 7 sessionAffinity:text, 8 loadBalancerIP:text,"
    " 9 loadBalancerSourceRanges:[]text, 10 externalName:text, 11 externalTrafficPolicy:text,"
    " 12 healthCheckNodePort:number, 13 publishNotReadyAddresses:flag, 17 ipFamilyPolicy:text!,"
    " 18 clusterIPs:[]text, 19 ipFamilies:[]text, 20 allocateLoadBalancerNodePorts:flag!,"
    " 21 loadBalancerClass:text!, 22 internalTrafficPolicy:text!, 23 trafficDistribution:text!",
    "ServicePort": "1 name:text, 2 protocol:text, 3 port:number, 4 targetPort:IntOrString,"
    " 5 nodePort:number, 6 appProtocol:text!",
    "ServiceStatus": "1 loadBalancer:LoadBalancerStatus",
    "LoadBalancerStatus": "",
    "ResourceQuota": f"{_META}, 2 spec:QuotaSpec, 3 status:QuotaStatus",
    "QuotaSpec": "1 hard:{}Quantity, 2 scopes:[]text",
    "QuotaStatus": "1 hard:{}Quantity, 2 used:{}Quantity",
    "Role": f"{_META}, 2 rules:[]PolicyRule",
    "ClusterRole": f"{_META}, 2 rules:[]PolicyRule, 3 aggregationRule:AggregationRule",
    "AggregationRule": "1 clusterRoleSelectors:[]LabelSelector",
    "PolicyRule": "1 verbs:[]text, 2 apiGroups:[]text, 3 resources:[]text, 4 resourceNames:[]text,"
    " 5 nonResourceURLs:[]text",
    "RoleBinding": f"{_META}, 2 subjects:[]Subject, 3 roleRef:RoleRef",
    "ClusterRoleBinding": f"{_META}, 2 subjects:[]Subject, 3 roleRef:RoleRef",
    "Subject": "1 kind:text, 2 apiGroup:text, 3 name:text, 4 namespace:text",
    "RoleRef": "1 apiGroup:text, 2 kind:text, 3 name:text",
    "PodDisruptionBudget": f"{_META}, 2 spec:BudgetSpec, 3 status:BudgetStatus",
    "BudgetSpec": "1 minAvailable:IntOrString, 2 selector:LabelSelector,"
    " 3 maxUnavailable:IntOrString, 4 unhealthyPodEvictionPolicy:text!",
    "BudgetStatus": "1 observedGeneration:number, 2 disruptedPods:{}Time,"
    " 3 disruptionsAllowed:number!, 4 currentHealthy:number!, 5 desiredHealthy:number!,"
    " 6 expectedPods:number!, 7 conditions:[]Condition",
    "PriorityClass": f"{_META}, 2 value:number!, 3 globalDefault:flag, 4 description:text,"
    " 5 preemptionPolicy:text!",
    "Job": f"{_META}, 2 spec:JobSpec, 3 status:JobStatus",
    "JobSpec": "1 parallelism:number!, 2 completions:number!, 3 activeDeadlineSeconds:number!,"
    " 4 selector:LabelSelector, 5 manualSelector:flag!, 6 template:PodTemplate,"
    " 7 backoffLimit:number!, 8 ttlSecondsAfterFinished:number!, 9 completionMode:text!,"
    " 10 suspend:flag!, 14 podReplacementPolicy:text!",
    "JobStatus": "4 active:number, 5 succeeded:number, 6 failed:number, 7 completedIndexes:text",
    "PodTemplate": f"{_META}, 2 spec:PodSpec",
    "PodSpec": "2 containers:[]Container, 3 restartPolicy:text, 6 dnsPolicy:text,"
    " 7 nodeSelector:{}text, 8 serviceAccountName:text, 9 serviceAccount:text, 10 nodeName:text,"
    " 11 hostNetwork:flag, 12 hostPID:flag, 13 hostIPC:flag, 16 hostname:text, 17 subdomain:text,"
    " 19 schedulerName:text, 24 priorityClassName:text",
    "Container": "1 name:text, 2 image:text, 3 command:[]text, 4 args:[]text, 5 workingDir:text,"
    " 8 resources:Resources, 13 terminationMessagePath:text, 14 imagePullPolicy:text,"
    " 16 stdin:flag, 17 stdinOnce:flag, 18 tty:flag, 20 terminationMessagePolicy:text",
    "Resources": "1 limits:{}Quantity, 2 requests:{}Quantity",
    "Eviction": f"{_META}, 2 deleteOptions:DeleteOptions",
    "SelfSubjectAccessReview": f"{_META}, 2 spec:AccessSpec, 3 status:AccessStatus",
    "AccessSpec": "1 resourceAttributes:ResourceAttributes,"
    " 2 nonResourceAttributes:NonResourceAttributes",
    "AccessStatus": "1 allowed:flag, 2 reason:text, 3 evaluationError:text, 4 denied:flag",
    "ResourceAttributes": "1 namespace:text, 2 verb:text, 3 group:text, 4 version:text,"
    " 5 resource:text, 6 subresource:text, 7 name:text",
    "NonResourceAttributes": "1 path:text, 2 verb:text",
    "SelfSubjectRulesReview": f"{_META}, 2 spec:RulesSpec, 3 status:RulesStatus",
    "RulesSpec": "1 namespace:text",
    "RulesStatus": "3 incomplete:flag, 4 evaluationError:text",
    "SelfSubjectReview": f"{_META}, 2 status:ReviewStatus",
    "ReviewStatus": "1 userInfo:UserInfo",
    "UserInfo": "1 username:text, 2 uid:text, 3 groups:[]text",
    "Unknown": "1 typeMeta:TypeMeta, 2 raw:Raw, 3 contentEncoding:text, 4 contentType:text",
    "TypeMeta": "1 apiVersion:text, 2 kind:text",
}
_NOT_HERE = frozenset({"TokenRequest", *(kind.kind for kind in ABSENT)})


def decoded(body: bytes) -> Json:
    """The object in a request's body, as JSON would have it."""
    if not body.startswith(_MAGIC):
        raise problems.bad_request("the body of the request is not Kubernetes' protobuf")
    try:
        whole = _message("Unknown", body[len(_MAGIC) :])
        about = whole.get("typeMeta") or {}
        kind = str(about.get("kind", ""))
        if kind in _NOT_HERE:
            return dict(about)  # the path says no; what is in it does not matter
        if kind not in _MESSAGES:
            raise _unknown(f"a {kind}")
        return {**about, **_message(kind, whole.get("raw", b""))}
    except (IndexError, OverflowError, OSError, ValueError) as error:
        raise problems.bad_request(f"the body of the request is cut or broken: {error}") from None


def _unknown(what: str) -> problems.Problem:
    return problems.unsupported(
        f"the embedded API cannot read {what} that comes in protobuf; JSON and YAML it can"
    )


def _message(name: str, data: bytes) -> Json:
    fields = _FIELDS[name]
    found: Json = {}
    for number, value in _read(data):
        if number not in fields:
            raise _unknown(f"field {number} of {name}")
        field, sort = fields[number]
        if sort.startswith("[]"):
            found.setdefault(field, []).append(_value(sort[2:], value))
        elif sort.startswith("{}"):
            pair = _fields_of(value)
            key = _value("text", pair.get(1, b""))
            found.setdefault(field, {})[key] = _value(sort[2:], pair.get(2, b""))
        else:
            one = _value(sort.rstrip("!"), value)
            if sort.endswith("!") or one or isinstance(one, dict):
                found[field] = one
    return found


def _value(sort: str, value: Any) -> Any:
    if isinstance(value, int) != (sort in ("number", "flag")):
        raise ValueError(f"a {sort} is written in another way")
    match sort:
        case "text":
            return value.decode()
        case "number":
            return _signed(value)
        case "flag":
            return bool(value)
        case "bytes":
            return base64.b64encode(value).decode()
        case "Raw":
            return value
        case "Quantity":
            return _value("text", _fields_of(value).get(1, b""))
        case "IntOrString":
            one = _fields_of(value)
            return _value("text", one.get(3, b"")) if one.get(1) else _signed(one.get(2, 0))
        case "Time":
            seconds = _fields_of(value).get(1)
            return timestamp(seconds) if seconds else None
    return _message(sort, value)


def _fields_of(value: Any) -> dict[int, Any]:
    if isinstance(value, int):
        raise ValueError("a number stands where a message should")
    return dict(_read(value))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _read(data: bytes) -> Iterator[tuple[int, Any]]:
    """Each field's number and value: an integer, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"there is no wire type {wire}")
        if at + size > len(data):
            raise ValueError("it ends too early")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of any length, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if not byte & _MORE:
            return value, at
        shift += _DIGIT_BITS
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(text: str) -> dict[int, tuple[str, str]]:
    found = {}
    for entry in filter(None, text.split(", ")):
        number, _, rest = entry.strip().partition(" ")
        name, _, sort = rest.partition(":")
        found[int(number)] = (name, sort)
    return found


_FIELDS = {name: _fields(text) for name, text in _MESSAGES.items()}
