"""What a user of a real API server may do, and the rights of our manifests given to one."""

from typing import Any

from click.testing import CliRunner

from bayplan.cli.main import main
from bayplan.testing.controlplane import ControlPlane
from tests.real.rig import until

LEASES = "coordination.k8s.io/leases"


def printed(*args: str) -> str:
    """What `bayplan manifests` prints."""
    done = CliRunner().invoke(main, ["manifests", *args])
    assert done.exit_code == 0, done.output
    return done.output


def apply(plane: ControlPlane, text: str, *options: str) -> list[str]:
    """What kubectl says, line by line; unknown fields are errors."""
    said = plane.kubectl("apply", "--validate=strict", "-f", "-", *options, input=text)
    return said.splitlines()


class Rights:
    """What a user may do, asked of the API server."""

    def __init__(self, plane: ControlPlane, user: str) -> None:
        self._plane, self._user = plane, user

    def may(self, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """`resource` is group/plural or group/plural/subresource."""
        group, plural, *sub = resource.split("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": "".join(sub)}
        asked |= {"namespace": namespace, "name": name}
        body: dict[str, Any] = {"spec": {"user": self._user, "resourceAttributes": asked}}
        if self._user.startswith("system:serviceaccount:"):
            space = self._user.split(":")[2]
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{space}"]
            body["spec"]["groups"] = [*groups, "system:authenticated"]
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self._plane.request("POST", path, body)["status"]["allowed"])


def grant(plane: ControlPlane, namespace: str, user: str = "") -> Rights:
    """The rights of our manifests under the namespace's name, to its account or also to `user`.

    The API server's authorizer follows roles and bindings by watches of its own. So one right of
    the cluster's role and one of the namespace's are awaited.
    """
    extra = ("--user", user) if user else ()
    apply(plane, printed("rbac", "--namespace", namespace, "--name", namespace, *extra))
    rights = Rights(plane, user or f"system:serviceaccount:{namespace}:{namespace}")
    until(lambda: rights.may("create", "/pods/binding"))
    until(lambda: rights.may("update", LEASES, namespace, namespace))
    return rights
