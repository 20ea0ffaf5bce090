"""kubectl commands about StatefulSets and Jobs. No controller runs on either side."""

from tests.real.contract.kubectl_scripts import Run

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web, tier: front}}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      schedulerName: bayplan
      containers:
      - name: main
        image: registry.example/web:1
        ports: [{containerPort: 80, name: http}]
        resources: {limits: {cpu: 1000m, nvidia.com/gpu: 1}}
"""
SET_AFTER = SET.replace("web:1", "web:2").replace("replicas: 2", "replicas: 3")
SET_MOVED = SET.replace("serviceName: web", "serviceName: other")
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  backoffLimit: 2
  parallelism: 2
  completions: 3
  template:
    spec:
      schedulerName: bayplan
      restartPolicy: Never
      containers: [{name: main, image: "registry.example/once:1", command: [sh, -c, "true"]}]
"""

SCRIPTS: dict[str, list[Run]] = {
    "a StatefulSet from apply to delete": [
        Run("apply -f -", SET),
        Run("apply -f -", SET),
        Run("get statefulsets"),
        Run("get sts -o wide"),
        Run("get sts web -o yaml"),
        Run("describe sts web"),
        Run("apply -f -", SET_AFTER),
        Run("get sts web -o jsonpath={.spec.replicas}/{.metadata.generation}"),
        Run("apply -f -", SET_MOVED),
        Run("scale sts/web --replicas=5"),
        Run("scale sts/web --replicas=1 --current-replicas=4"),
        Run("get sts web"),
        Run("set image sts/web main=registry.example/web:3"),
        Run("get sts web -o jsonpath={.spec.template.spec.containers[*].image}"),
        Run("delete sts web --cascade=orphan --wait=false"),
        Run("get sts web -o jsonpath={.metadata.finalizers}"),
        Run("delete sts web"),
        Run("get sts"),
    ],
    "a Job from apply to delete": [
        Run("apply -f -", JOB),
        Run("apply -f -", JOB),
        Run("get jobs"),
        Run("get jobs -o wide"),
        Run("get job once -o yaml"),
        Run("describe job once"),
        Run("create job twice --image=registry.example/twice -- sh -c true"),
        Run("get job twice -o yaml"),
        Run("delete job once twice"),
        Run("get jobs"),
        Run("get all"),
    ],
}
