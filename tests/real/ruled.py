"""Our manifests in force on a real API server, and people who try what they may do there."""

import json
import ssl
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.error import HTTPError

from bayplan.core.model.devices import ASSIGNMENT, INVENTORY
from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.rig import Json, node, pod, until
from tests.real.rights import Rights, apply, printed

RULES = "rbac.authorization.k8s.io"
OF_PODS = [
    "pods",
    *(f"pods/{sub}" for sub in ("status", "binding", "ephemeralcontainers", "resize")),
]
OF_PODS_AND_NODES = [*OF_PODS, "bindings", "nodes", "nodes/status"]
EVERYTHING = [{"apiGroups": [""], "resources": OF_PODS_AND_NODES, "verbs": ["*"]}]
Act = Callable[[], object]
Annotations = Mapping[str, str | None]  # None removes
NONE: Annotations = {}


class Person:
    """Somebody with a token, and what one can do to pods and nodes."""

    def __init__(self, plane: ControlPlane, namespace: str, token: str) -> None:
        self._plane, self._token = plane, token
        self._space = f"/api/v1/namespaces/{namespace}"

    def ask(self, method: str, path: str, body: Any = None) -> Json:
        found: Json = self._plane.request(method, path, body, self._token)
        return found

    def create(self, name: str, annotations: Annotations = NONE, query: str = "") -> Json:
        body = pod(name)
        body["metadata"]["annotations"] = annotations
        return self.ask("POST", f"{self._space}/pods{query}", body)

    def read(self, name: str) -> Json:
        return self.ask("GET", f"{self._space}/pods/{name}")

    def replace(self, body: Json) -> Json:
        return self.ask("PUT", f"{self._space}/pods/{body['metadata']['name']}", body)

    def annotate(self, name: str, annotations: Annotations, sub: str = "") -> Json:
        patch = {"metadata": {"annotations": annotations}}
        return self.ask("PATCH", f"{self._space}/pods/{name}{sub}", patch)

    def label(self, name: str, **labels: str) -> Json:
        return self.ask("PATCH", f"{self._space}/pods/{name}", {"metadata": {"labels": labels}})

    def bind(self, name: str, to: str, annotations: Annotations = NONE, query: str = "") -> Json:
        path = f"{self._space}/pods/{name}/binding{query}"
        return self.ask("POST", path, _binding(name, to, annotations))

    def bind_as_of_old(self, name: str, to: str, annotations: Annotations = NONE) -> Json:
        return self.ask("POST", f"{self._space}/bindings", _binding(name, to, annotations))

    def annotate_node(self, name: str, annotations: Annotations, sub: str = "") -> Json:
        patch = {"metadata": {"annotations": annotations}}
        return self.ask("PATCH", f"/api/v1/nodes/{name}{sub}", patch)


def _binding(name: str, to: str, annotations: Annotations) -> Json:
    metadata = {"name": name, "annotations": annotations}
    target = {"apiVersion": "v1", "kind": "Node", "name": to}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


class Ruled:
    """A namespace with our accounts, two nodes, and the policies in force.

    With `everything`, all accounts of the namespace have all rights on pods and nodes.
    """

    def __init__(self, plane: ControlPlane, everything: bool) -> None:
        self.plane = plane
        self.space = f"test-{uuid.uuid4().hex[:8]}"
        self.agents = f"{self.space}-agent"  # the name of their account
        self.here, self.there = f"{self.space}-1", f"{self.space}-2"
        self.admin = Person(plane, self.space, plane.token)
        names = ("--namespace", self.space, "--name")
        self.policy = printed(
            "policy", *names, self.space, "--agent", self.agents,
            "--extender", f"{self.space}-extender", "--user", self.account("static"),
        )  # fmt: skip
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.space}})
        for name in (self.here, self.there):
            plane.request("POST", "/api/v1/nodes", node(name))
        apply(plane, printed("rbac", *names, self.space))
        apply(plane, printed("agent", *names, self.agents))
        if everything:
            self._grant_everything()
        self.user = self.person("user")
        self.scheduler = self.person(self.space)

    def account(self, name: str) -> str:
        return f"system:serviceaccount:{self.space}:{name}"

    def person(self, account: str, of_pod_on: str = "") -> Person:
        return Person(self.plane, self.space, self.token(account, of_pod_on))

    def token(self, account: str, of_pod_on: str = "") -> str:
        """The account's, or that of one of its pods, which names the node."""
        path = f"/api/v1/namespaces/{self.space}/serviceaccounts"
        known = {each["metadata"]["name"] for each in self.plane.request("GET", path)["items"]}
        if account not in known:
            self.plane.request("POST", path, {"metadata": {"name": account}})
        spec: Json = {}
        if of_pod_on:
            body = pod(f"of-{account}-{uuid.uuid4().hex[:8]}", serviceAccountName=account)
            body["spec"]["nodeName"] = of_pod_on
            path_of_pods = f"/api/v1/namespaces/{self.space}/pods"
            its = self.admin.ask("POST", path_of_pods, body)["metadata"]
            of = {"apiVersion": "v1", "kind": "Pod", "name": its["name"], "uid": its["uid"]}
            spec = {"boundObjectRef": of}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = self.plane.request("POST", f"{path}/{account}/token", asked)
        token: str = made["status"]["token"]
        return token

    def given(self, annotations: Annotations = NONE, to: str = "") -> str:
        """A new pod. With annotations it is bound with them, to this node or the first."""
        name = f"pod-{uuid.uuid4().hex[:8]}"
        self.admin.create(name)
        if to or annotations:
            self.scheduler.bind(name, to or self.here, annotations)
        return name

    def agent(self, on: str) -> Person:
        return self.person(self.agents, of_pod_on=on)

    def as_kubelet(self, method: str, path: str, body: Json) -> Json:
        """As the first node's own user, whom the Node authorizer knows."""
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        headers = {
            "Authorization": f"Bearer {self.plane.token}",
            "Content-Type": f"application/{kind}",
            "Impersonate-User": f"system:node:{self.here}",
            "Impersonate-Group": "system:nodes",
        }
        url, sent = self.plane.url + path, json.dumps(body).encode()
        request = urllib.request.Request(url, sent, headers, method=method)
        tls = ssl.create_default_context(cafile=str(self.plane.ca_file))
        try:
            with urllib.request.urlopen(request, timeout=30, context=tls) as answer:
                found: Json = json.load(answer)
                return found
        except HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode()) from None

    def in_force(self) -> list[bool]:
        """Of each policy; nothing is written. A policy counts from a moment after its creation."""
        dry, forged = "?dryRun=All", {ASSIGNMENT: "{}"}
        acts: tuple[Act, ...] = (
            lambda: self.admin.create("forged", forged, dry),
            lambda: self.admin.bind(self._waiting, self.here, forged, dry),
            lambda: self.admin.annotate_node(self.here, {INVENTORY: "{}"}, dry),
        )
        return [not passes(act) for act in acts]

    def enforce(self) -> None:
        self._waiting = self.given()
        until(lambda: self.in_force() == [False] * 3)
        apply(self.plane, self.policy)
        until(lambda: self.in_force() == [True] * 3)

    def lift(self) -> None:
        self.plane.kubectl("delete", "--ignore-not-found", "-f", "-", input=self.policy)
        until(lambda: self.in_force() == [False] * 3)
        self.plane.wipe()

    def _grant_everything(self) -> None:
        path = f"/apis/{RULES}/v1"
        name = f"{self.space}-everything"
        group = {"apiGroup": RULES, "kind": "Group", "name": f"system:serviceaccounts:{self.space}"}
        to = {"apiGroup": RULES, "kind": "ClusterRole", "name": name}
        role = {"metadata": {"name": name}, "rules": EVERYTHING}
        self.plane.request("POST", f"{path}/clusterroles", role)
        bound = {"metadata": {"name": name}, "roleRef": to, "subjects": [group]}
        self.plane.request("POST", f"{path}/clusterrolebindings", bound)
        rights = Rights(self.plane, self.account("user"))
        until(lambda: rights.may("create", "/bindings") and rights.may("patch", "/nodes/status"))


def passes(act: Act) -> bool:
    try:
        act()
    except Refused as refused:
        if "denied request" not in str(refused):  # by a policy
            raise
        return False
    return True
