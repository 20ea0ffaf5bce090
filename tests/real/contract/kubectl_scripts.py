"""Lists of kubectl commands, to be run one after the other. `{ns}` is the test's namespace."""

from typing import NamedTuple


class Run(NamedTuple):
    """A command line, split at blanks, and what it reads."""

    line: str
    reads: str | None = None


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
OTHER_ENV = POD.replace("value: b", "value: c")
BEST_EFFORT = """
apiVersion: v1
kind: Pod
metadata: {name: idle, labels: {app: idle}, annotations: {note: two words}}
spec:
  schedulerName: bayplan
  nodeSelector: {zone: b}
  tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
  priority: 0
  restartPolicy: Never
  initContainers:
  - {name: fetch, image: "registry.example/fetch", command: [sh, -c], args: ["echo 1"]}
  containers:
  - {name: a, image: "registry.example/a:1", ports: [{containerPort: 80, name: http}]}
  - {name: b, image: "registry.example/b:1", volumeMounts: [{name: scratch, mountPath: /tmp}]}
  volumes: [{name: scratch, emptyDir: {sizeLimit: 1Gi}}]
"""
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
BINDING = """{
  "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "NAME", "namespace": "{ns}"},
  "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}
}"""
EVENT = """
apiVersion: v1
kind: Event
metadata: {name: train.1, namespace: {ns}}
involvedObject: {apiVersion: v1, kind: Pod, name: train, namespace: {ns}}
reason: FailedScheduling
message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
type: Warning
source: {component: bayplan}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:01:00Z"
count: 3
"""
NEW_EVENT = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: train.2, namespace: {ns}}
regarding: {apiVersion: v1, kind: Pod, name: train, namespace: {ns}}
reason: Scheduled
note: "Successfully assigned the pod to n1"
action: Binding
type: Normal
reportingController: bayplan
reportingInstance: bayplan-1
eventTime: "2026-01-01T00:02:00.000000Z"
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: podgroups.scheduling.x-k8s.io
  annotations:
    api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
spec:
  group: scheduling.x-k8s.io
  names: {kind: PodGroup, plural: podgroups, singular: podgroup, shortNames: [pg]}
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
MANY = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{a: b}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: keep}}
spec: {{minAvailable: 1, selector: {{matchLabels: {{app: train}}}}}}
---
{POD}
"""
ACCOUNT = """
apiVersion: v1
kind: ServiceAccount
metadata:
  name: robot
  labels: {a: "1", b: "2"}
  annotations: {kept: "yes", dropped: "yes"}
  finalizers: [example.com/one, example.com/two]
imagePullSecrets: [{name: one}, {name: two}, {name: three}]
secrets: [{name: one}, {name: two}, {name: three}]
"""
ACCOUNT_AFTER = """
apiVersion: v1
kind: ServiceAccount
metadata:
  name: robot
  labels: {a: "1", c: "3"}
  annotations: {kept: "yes"}
  finalizers: [example.com/two]
imagePullSecrets: [{name: three}, {name: four}, {name: one}]
secrets: [{name: three}, {name: four}, {name: one}]
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: None
  selector: {app: web, tier: front}
  ports: [{name: http, port: 80}, {name: https, port: 443}, {name: old, port: 8080}]
"""
SERVICE_AFTER = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: https, port: 443, targetPort: 8443}, {name: http, port: 80}, {name: m, port: 90}]
"""
GATED = POD.replace(
    "spec:\n", "spec:\n  schedulingGates: [{name: x.io/one}, {name: x.io/two}]\n", 1
)
UNGATED = POD.replace("spec:\n", "spec:\n  nodeSelector: {zone: a}\n", 1)
STORAGE = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast-{ns}, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: example.com/disks
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-{ns}}
spec:
  capacity: {storage: 1024Mi}
  accessModes: [ReadWriteOnce, ReadOnlyMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: fast-{ns}
  volumeMode: Filesystem
  hostPath: {path: /disk}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: fast-{ns}
  volumeMode: Filesystem
  resources: {requests: {storage: 0.5Gi}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: vm-{ns}}
handler: vm
"""
LIST = f"apiVersion: v1\nkind: List\nitems:\n- {POD.strip().replace(chr(10), chr(10) + '  ')}\n"


def bound(name: str) -> Run:
    path = f"/api/v1/namespaces/{{ns}}/pods/{name}/binding"
    return Run(f"create --raw {path} -f -", BINDING.replace("NAME", name))


def status(name: str, patch: str) -> Run:
    return Run(f'patch pod {name} --subresource=status --type=merge -p {{"status":{patch}}}')


FAILED = status("train", '{"phase":"Failed","reason":"OutOfcpu","message":"no-room"}')
RUNNING = status(
    "train",
    '{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],'
    '"startTime":"2026-01-01T00:00:00Z",'
    '"conditions":[{"type":"Ready","status":"True"},{"type":"PodScheduled","status":"True"}],'
    '"containerStatuses":[{"name":"main","image":"registry.example/train:1","imageID":"",'
    '"containerID":"pretend://1","ready":true,"started":true,"restartCount":2,"lastState":{},'
    '"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}',
)
SCRIPTS: dict[str, list[Run]] = {
    "a pod from apply to delete": [
        Run("apply -f -", POD),
        Run("apply -f -", POD),
        Run("get pods"),
        Run("get pods -o wide"),
        Run("get pod train -o name"),
        Run("get pod train -o yaml"),
        Run("get pods -o json"),
        Run("get pods -l app=train -o jsonpath={.items[*].metadata.name}"),
        Run("get pods --show-labels"),
        Run("get pods -L app"),
        Run("get pods -o custom-columns=A:.metadata.name,B:.spec.nodeName"),
        Run("describe pod train"),
        Run("apply -f -", CHANGED),
        Run("get pod train -o jsonpath={.spec.containers[0].image}/{.metadata.labels.team}"),
        Run("apply -f -", POD),
        Run("get pod train -o yaml"),
        Run("label pod train tier=gold"),
        Run("label pod train tier=silver"),
        Run("label pod train tier=silver --overwrite"),
        Run("label pod train tier-"),
        Run("annotate pod train note=this"),
        Run("annotate pod train note-"),
        Run("set image pod/train main=registry.example/train:3"),
        Run("delete pod train --dry-run=server"),
        Run("get pod train"),
        Run("delete pod train"),
        Run("get pods"),
        Run("get pod train"),
        Run("delete pod train"),
    ],
    "create, patch, wait": [
        Run("create -f -", POD),
        Run("create -f -", POD),
        Run("replace -f -", CHANGED),
        Run("replace -f -", OTHER_ENV),
        Run('patch pod train -p {"metadata":{"labels":{"a":"b"}}}'),
        Run('patch pod train -p {"metadata":{"labels":{"a":"b"}}}'),
        Run('patch pod train --type=json -p [{"op":"remove","path":"/metadata/labels/a"}]'),
        Run('patch pod train --type=merge -p {"metadata":{"labels":{"c":"d"}}}'),
        FAILED,
        Run("wait pod/train --for=jsonpath={.status.phase}=Failed --timeout=10s"),
        Run("wait pod/train --for=condition=Ready --timeout=1s"),
        Run("wait pod/train --for=create --timeout=5s"),
        Run("get pods"),
        Run("describe pod train"),
        Run("delete pod train --wait=false"),
        Run("wait pod/train --for=delete --timeout=10s"),
    ],
    "two containers, bound": [
        Run("apply -f -", NODE),
        Run("apply -f -", BEST_EFFORT),
        Run("get pod idle -o yaml"),
        Run("describe pod idle"),
        bound("idle"),
        bound("idle"),
        Run("get pods -o wide"),
        Run("describe pod idle"),
        Run("describe node n1"),
        Run("delete pod idle --wait=false"),
        Run("get pods"),
        Run("delete pod idle --force"),
        Run("get pods"),
    ],
    "a pod that runs, with events": [
        Run("apply -f -", NODE),
        Run("create -f -", POD),
        Run("create -f -", EVENT),
        Run("create -f -", NEW_EVENT),
        Run("get events"),
        Run("get events -o wide"),
        Run("get events --field-selector reason=Scheduled"),
        Run("get events.events.k8s.io"),
        Run("get events -o yaml"),
        Run("get events.events.k8s.io -o yaml"),
        Run("events"),
        Run("events --for pod/train --types=Warning"),
        Run("describe pod train"),
        bound("train"),
        RUNNING,
        Run("get pods -o wide"),
        Run("get pods -A --field-selector metadata.namespace={ns}"),
        Run("get pods --field-selector spec.nodeName=n1,status.phase=Running"),
        Run("wait pod/train --for=condition=Ready --timeout=5s"),
        Run("describe pod train"),
        Run("describe node n1"),
        Run("get all"),
        Run("delete pod train --grace-period=0 --force"),
        Run("delete events --all"),
        Run("get all"),
    ],
    "lists of several things": [
        Run("apply -f -", LIST),
        Run("apply -f -", LIST.replace("train:1", "train:2")),
        Run("create -f -", BEST_EFFORT),
        Run("get pods,configmaps"),
        Run("get pods train nobody"),
        Run("get pods --chunk-size=1"),
        Run("get pods --sort-by=.metadata.name -o name"),
        Run("describe pods"),
        Run("delete pods -l app=train"),
        Run("delete pods --all"),
        Run("delete pods --all"),
    ],
    "nodes": [
        Run("apply -f -", NODE),
        Run("get nodes"),
        Run("get nodes -o wide"),
        Run("get node n1 -o yaml"),
        Run("describe node n1"),
        Run("apply -f -", NODE),
        Run("cordon n1"),
        Run("cordon n1"),
        Run("get nodes"),
        Run("uncordon n1"),
        Run("taint nodes n1 dedicated=gpu:NoSchedule"),
        Run("taint nodes n1 dedicated=gpu:NoSchedule"),
        Run("taint nodes n1 other=x:NoExecute"),
        Run("get node n1 -o jsonpath={.spec.taints}"),
        Run("describe node n1"),
        Run("taint nodes n1 dedicated-"),
        Run("label node n1 zone=a"),
        Run("delete node n1"),
        Run("get nodes"),
    ],
    "drain": [
        Run("apply -f -", NODE),
        Run("apply -f -", MANY),
        bound("train"),
        Run("drain n1"),
        Run("drain n1 --force --dry-run=server"),
        Run("drain n1 --force --grace-period=0 --timeout=20s"),
        Run("get pods"),
        Run("get nodes"),
        Run("drain n1 --force"),
        Run("uncordon n1"),
    ],
    "apply merges three ways": [
        Run("apply -f -", ACCOUNT),
        Run("get serviceaccount robot -o yaml"),
        Run("label serviceaccount robot mine=kept"),
        Run('patch serviceaccount robot -p {"secrets":[{"name":"mine"}]}'),
        Run("get serviceaccount robot -o jsonpath={.secrets[*].name}"),
        Run("apply -f -", ACCOUNT_AFTER),
        Run("get serviceaccount robot -o yaml"),
        Run("apply -f - --dry-run=server", ACCOUNT),
        Run("apply -f - --dry-run=client", ACCOUNT),
        Run('patch serviceaccount robot -p {"secrets":[{"$patch":"replace"},{"name":"z"}]}'),
        Run('patch serviceaccount robot -p {"secrets":[{"$patch":"delete","name":"z"}]}'),
        Run("get serviceaccount robot -o yaml"),
        Run("apply -f -", SERVICE),
        Run("apply -f -", SERVICE_AFTER),
        Run(
            "get service web -o jsonpath={range.spec.ports[*]}{.name}={.port},{end}{.spec.selector}"
        ),
        Run("apply -f -", GATED),
        Run("get pods"),
        Run("apply -f -", UNGATED),
        Run("get pod train -o yaml"),
        Run("apply -f -", OTHER_ENV),
        Run("replace --force -f -", OTHER_ENV),
        Run("get pod train -o jsonpath={.spec.containers[0].env}"),
    ],
    "a file with several documents": [
        Run("apply -f -", MANY),
        Run("apply -f -", MANY.replace("a: b", "a: c").replace("{app: train}", "{app: other}")),
        Run("get configmap settings -o yaml"),
        Run("get pdb keep -o jsonpath={.spec}"),
        Run("get pdb"),
        Run("delete -f -", MANY),
        Run("delete -f -", MANY),
        Run("delete -f - --ignore-not-found", MANY),
    ],
    "a custom resource": [
        Run("apply -f -", DEFINITION),
        Run("wait crd/podgroups.scheduling.x-k8s.io --for=condition=Established --timeout=20s"),
        Run("apply -f -", GROUP),
        Run("apply -f -", GROUP),
        Run("get podgroups"),
        Run("get pg gang -o yaml"),
        Run("describe pg gang"),
        Run("get pg gang -o jsonpath={.spec.minMember}"),
        Run("apply -f -", GROUP.replace("3", "5")),
        Run("get pg gang -o jsonpath={.spec.minMember}/{.metadata.generation}"),
        Run('patch pg gang --type=merge -p {"spec":{"minMember":7}}'),
        Run('patch pg gang --subresource=status --type=merge -p {"status":{"phase":"Running"}}'),
        Run("get pg"),
        Run('patch pg gang -p {"spec":{"minMember":7}}'),
        Run("delete pg gang"),
        Run("get pg"),
        Run("delete crd podgroups.scheduling.x-k8s.io"),
    ],
    "what kubectl create makes itself": [
        Run("create configmap settings --from-literal=a=b"),
        Run("get configmap settings -o yaml"),
        Run("describe configmap settings"),
        Run("get configmaps"),
        Run("create secret generic hidden --from-literal=a=b"),
        Run("get secret hidden -o yaml"),
        Run("get secrets"),
        Run("describe secret hidden"),
        Run("create serviceaccount robot"),
        Run("get serviceaccounts"),
        Run("create role reader --verb=get,list --resource=pods,nodes --resource-name=x"),
        Run("get role reader -o yaml"),
        Run("get roles"),
        Run("create rolebinding read --role=reader --user=me --group=us --serviceaccount=ns:robot"),
        Run("get rolebinding read -o yaml"),
        Run("get rolebindings -o wide"),
        Run("create poddisruptionbudget keep --selector=a=b --min-available=50%"),
        Run("get poddisruptionbudget keep -o jsonpath={.spec}/{.metadata.generation}"),
        Run(
            "create priorityclass high-{ns} --value=-5 --description=low --preemption-policy=Never"
        ),
        Run("get priorityclass high-{ns} -o yaml"),
        Run("get priorityclass high-{ns}"),
        Run("delete priorityclass high-{ns}"),
        Run("create quota most --hard=cpu=1,limits.memory=1024Mi"),
        Run("get quota most -o jsonpath={.spec}"),
        Run("create service externalname far --external-name=example.com"),
        Run("get services -o wide"),
        Run("run quick --image=registry.example/a:1 --restart=Never --labels=a=b -- sleep 5"),
        Run("get pod quick -o yaml"),
        Run("create configmap settings --from-literal=a=b"),
        Run("create configmap dry --from-literal=a=b --dry-run=server"),
        Run("create configmap dry --from-literal=a=b --dry-run=client -o yaml"),
        Run("delete configmap settings"),
        Run("get events"),
    ],
    "kinds that are only stored": [
        Run("apply -f -", STORAGE),
        Run("get pv disk-{ns} -o wide"),
        Run("get pvc -o wide"),
        Run("get pvc data -o jsonpath={.spec.resources}"),
        Run("get storageclass fast-{ns}"),
        Run("get runtimeclass vm-{ns}"),
        Run("get namespace {ns}"),
        Run("get namespace {ns} -o yaml"),
        Run("delete runtimeclass vm-{ns}"),
        Run("delete storageclass fast-{ns}"),
    ],
    "mistakes": [
        Run("get zebras"),
        Run("get pod nobody"),
        Run("get pods/nobody nodes/nobody"),
        Run("describe pod nobody"),
        Run("label pod nobody a=b"),
        Run("delete pod nobody --ignore-not-found"),
        Run("apply -f -", POD.replace("name: train", "name: Train_It")),
        Run("apply -f -", POD.replace("kind: Pod", "kind: Zebra")),
        Run("apply -f -", POD.replace("v1", "v7", 1)),
        Run("apply -f -", "just words"),
        Run("create -f -", POD.replace("  - name: main\n", "  -\n")),
        Run("create -f -", POD.replace("  name: train\n", "")),
        Run("create -f -", POD.replace("cpu: 1", "cpu: much")),
        Run("create -f -", POD.replace("cpu: 1", "cpu: 1Gb")),
        Run("create -f -", POD.replace("cpu: 1", "cpu: 1Gk")),
        Run("create -f -", POD.replace("{app: train}", "{app: train me}")),
        Run("create -n nowhere -f -", POD),
        Run("get pods -n nowhere"),
        Run("get pods --field-selector spec.colour=red"),
        Run("get pods -l =,="),
    ],
}
