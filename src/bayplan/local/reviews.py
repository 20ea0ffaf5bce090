"""Who am I, and may I? Everybody may do everything here, and this says so to those who ask.

These are requests that store nothing: an object comes in and goes back with its status.
"""

import msgspec

from bayplan.local import problems
from bayplan.local.store import Json, decode, encode

_USER = {"username": "everybody", "groups": ["system:masters", "system:authenticated"]}
_WHY = "the embedded API lets everybody on this machine do everything"
_EVERYTHING = {"verbs": ["*"]}
_RULES = {
    "resourceRules": [{**_EVERYTHING, "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{**_EVERYTHING, "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_MAY = {"allowed": True, "reason": _WHY}
_STATUS: dict[str, tuple[str, Json]] = {
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": ("SelfSubjectReview", {"userInfo": _USER}),
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": ("SelfSubjectAccessReview", _MAY),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": ("SelfSubjectRulesReview", _RULES),
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": ("SubjectAccessReview", _MAY),
}


def reviewed(method: str, path: str, body: bytes) -> bytes | None:
    """The object with its status; None where nothing of the kind was asked."""
    if method == "POST" and path.endswith("/token"):
        raise problems.unsupported("the embedded API has no tokens: nobody needs one")
    if method != "POST" or path not in _STATUS:
        return None
    try:
        given = decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(given, dict):
        return None
    kind, status = _STATUS[path]
    version = path.removeprefix("/apis/").rpartition("/")[0]
    about = {"metadata": {"creationTimestamp": None}, **given}
    return encode({**about, "kind": kind, "apiVersion": version, "status": status})
