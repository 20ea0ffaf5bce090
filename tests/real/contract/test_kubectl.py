"""An unchanged kubectl prints the same of both back ends."""

import re
from typing import Any, NamedTuple

import pytest

from bayplan.testing.controlplane import ControlPlaneError
from tests.embedded import Plane
from tests.real.contract.conftest import Both
from tests.real.contract.exchange import Server

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: train
  labels: {app: train}
spec:
  schedulerName: bayplan
  containers:
  - name: main
    image: registry.example/train:1
    env: [{name: A, value: b}]
    resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}
"""
CHANGED = POD.replace("{app: train}", "{app: train, team: x}").replace("train:1", "train:2")
NODE = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {kubernetes.io/hostname: n1, node-role.kubernetes.io/worker: ""}
status:
  capacity: {cpu: 8, memory: 32Gi, pods: 110, nvidia.com/gpu: 8}
  conditions: [{type: Ready, status: "True"}]
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: podgroups.scheduling.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
spec:
  group: scheduling.x-k8s.io
  names:
    {kind: PodGroup, plural: podgroups, singular: podgroup, listKind: PodGroupList, shortNames: [pg]}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Phase, type: string, jsonPath: .status.phase}
    - {name: MinMember, type: integer, jsonPath: .spec.minMember}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: gang}
spec: {minMember: 3}
"""


class Run(NamedTuple):
    """A command line, and what it reads."""

    line: str
    reads: str | None = None


FAILED = Run('patch pod train --subresource=status --type=merge -p {"status":{"phase":"Failed"}}')
SCRIPTS: dict[str, list[Run]] = {
    "a pod from apply to delete": [
        Run("apply -f -", POD),
        Run("apply -f -", POD),
        Run("get pods"),
        Run("get pods -o wide"),
        Run("get pod train -o name"),
        Run("get pods -l app=train -o jsonpath={.items[*].metadata.name}"),
        Run("get pods --show-labels"),
        Run("describe pod train"),
        Run("apply -f -", CHANGED),
        Run("get pod train -o jsonpath={.spec.containers[0].image}/{.metadata.labels.team}"),
        Run("label pod train tier=gold"),
        Run("annotate pod train note=this"),
        Run("delete pod train"),
        Run("get pods"),
        Run("get pod train"),
        Run("delete pod train"),
    ],
    "create, patch, wait": [
        Run("create -f -", POD),
        Run("create -f -", POD),
        Run('patch pod train -p {"metadata":{"labels":{"a":"b"}}}'),
        Run('patch pod train --type=json -p [{"op":"remove","path":"/metadata/labels/a"}]'),
        Run('patch pod train --type=merge -p {"metadata":{"labels":{"c":"d"}}}'),
        FAILED,
        Run("wait pod/train --for=jsonpath={.status.phase}=Failed --timeout=10s"),
        Run("wait pod/train --for=condition=Ready --timeout=1s"),
        Run("get pods"),
        Run("delete pod train --wait=false"),
        Run("wait pod/train --for=delete --timeout=10s"),
    ],
    "nodes": [
        Run("apply -f -", NODE),
        Run("get nodes"),
        Run("get nodes -o wide"),
        Run("describe node n1"),
        Run("cordon n1"),
        Run("get nodes"),
        Run("uncordon n1"),
        Run("taint nodes n1 dedicated=gpu:NoSchedule"),
        Run("get node n1 -o jsonpath={.spec.taints}"),
        Run("taint nodes n1 dedicated-"),
        Run("delete node n1"),
        Run("get nodes"),
    ],
    "a custom resource": [
        Run("apply -f -", DEFINITION),
        Run("wait crd/podgroups.scheduling.x-k8s.io --for=condition=Established --timeout=20s"),
        Run("apply -f -", GROUP),
        Run("get podgroups"),
        Run("get pg gang -o jsonpath={.spec.minMember}"),
        Run("apply -f -", GROUP.replace("3", "5")),
        Run("get pg gang -o jsonpath={.spec.minMember}/{.metadata.generation}"),
        Run('patch pg gang --type=merge -p {"spec":{"minMember":7}}'),
        Run('patch pg gang -p {"spec":{"minMember":7}}'),
        Run("delete pg gang"),
        Run("get pg"),
        Run("delete crd podgroups.scheduling.x-k8s.io"),
    ],
    "namespaces and config maps": [
        Run("create configmap settings --from-literal=a=b"),
        Run("get configmap settings -o jsonpath={.data}"),
        Run("describe configmap settings"),
        Run("get configmaps"),
        Run("delete configmap settings"),
        Run("get events"),
    ],
    "mistakes": [
        Run("get zebras"),
        Run("get pod nobody"),
        Run("apply -f -", POD.replace("name: train", "name: Train_It")),
        Run("apply -f -", POD.replace("kind: Pod", "kind: Zebra")),
        Run("create -f -", POD.replace("  - name: main\n", "  -\n")),
        Run("get pods --field-selector spec.colour=red"),
        Run("get pods -l =,="),
    ],
}
AGE = re.compile(r"\b\d+[smhd](\d+[sm])?\b")
TIMES = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}")


def said(plane: Plane, namespace: str, run: Run) -> str:
    try:
        words = plane.kubectl("-n", namespace, *_arguments(run.line), input=run.reads)
    except ControlPlaneError as error:
        words = str(error)
    words = words.replace(namespace, "NAMESPACE")
    lines = [AGE.sub("AGE", TIMES.sub("TIME", line)).rstrip() for line in words.splitlines()]
    return "\n".join(" ".join(line.split()) for line in lines)


def _arguments(line: str) -> list[str]:
    """Split at blanks; none of the commands has one inside an argument."""
    return line.split(" ")


@pytest.mark.parametrize("name", SCRIPTS)
def test_kubectl_prints_the_same(name: str, both: Both) -> None:
    differences: list[Any] = []
    for run in SCRIPTS[name]:
        real, embedded = (_said(server, run) for server in (both.real, both.embedded))
        if real != embedded:
            differences.append((run.line, real, embedded))
    assert not differences


def _said(server: Server, run: Run) -> str:
    return said(server.plane, server.namespace, run)
