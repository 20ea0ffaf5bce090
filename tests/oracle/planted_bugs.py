"""Bugs to plant, one line each: mistakes that are easy to make and that parity must notice.

Each names a file below src/bayplan, text that stands there exactly once, and what takes its place.
When the code moves on, an entry whose text is gone fails; aim it anew at what took its place.
"""

from pathlib import Path
from typing import NamedTuple


class Bug(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    breaks: str


SPREAD = "core/plugins/spread.py"
POD_AFFINITY = "core/plugins/pod_affinity.py"
NODE_AFFINITY = "core/plugins/node_affinity.py"
NODE_NAME = "core/plugins/node_name.py"
TAINTS = "core/plugins/taints.py"
PORTS = "core/plugins/ports.py"
RESOURCES = "core/plugins/resources.py"
AMOUNTS = "core/plugins/amounts.py"
IMAGES = "core/plugins/images.py"
REGISTRY = "core/plugins/registry.py"
CLUSTER = "core/state/cluster.py"
TERM_COUNTS = "core/state/terms.py"
LABEL_COLUMNS = "core/state/labels.py"
POD_INDEX = "core/state/podindex.py"
REQUESTS = "core/model/requests.py"
QUANTITY = "core/model/quantity.py"
SELECTORS = "core/model/selectors.py"
NODE_VALUES = "core/model/nodes.py"
VERDICTS = "core/engine/verdicts.py"
KEPT = "core/engine/kept.py"
ROWS = "kube/rows.py"
TERMS = "kube/terms.py"
READ = "kube/read.py"
VOLUMES = "core/plugins/volumes.py"
STORAGE = "core/state/storage.py"
READ_VOLUMES = "kube/volumes.py"

TOPOLOGY_SPREAD = (
    Bug(
        "skew-off-by-one",
        SPREAD,
        "len(column.values)) > most)",
        "len(column.values)) >= most)",
        "a skew of exactly maxSkew is allowed",
    ),
    Bug(
        "min-domains-forgotten",
        SPREAD,
        "if len(counted) and len(counted) >= spread.min_domains:",
        "if len(counted):",
        "with fewer than minDomains domains the least is 0",
    ),
    Bug(
        "min-domains-off-by-one",
        SPREAD,
        "len(counted) >= spread.min_domains",
        "len(counted) > spread.min_domains",
        "exactly minDomains domains are enough",
    ),
    Bug(
        "newcomer-not-counted",
        SPREAD,
        "most = spread.max_skew - int(itself)",
        "most = spread.max_skew",
        "the newcomer adds to the skew",
    ),
    Bug(
        "unlabelled-nodes-are-in-no-domain",
        SPREAD,
        "if is_complete and sums.sums",
        "if sums.sums",
        "a node without the label is refused however empty all domains are",
    ),
    Bug(
        "newcomer-always-counted",
        SPREAD,
        "itself = spread.selector is not None and spread.selector.matches(ask.pod.labels)",
        "itself = True",
        "the newcomer adds to the skew only if it matches",
    ),
    Bug(
        "taints-policy-ignored",
        SPREAD,
        "if spread.honor_taints and (",
        "if False and (",
        "nodeTaintsPolicy: Honor leaves tainted nodes out",
    ),
    Bug(
        "affinity-policy-ignored",
        SPREAD,
        "if spread.honor_affinity and (",
        "if (",
        "nodeAffinityPolicy: Ignore counts all nodes",
    ),
    Bug(
        "domains-without-nodes-counted",
        TERM_COUNTS,
        "np.flatnonzero(self.nodes[1:]) + 1",
        "np.flatnonzero(self.nodes[1:] >= 0) + 1",
        "a domain exists only through an eligible node",
    ),
    Bug(
        "only-own-key-needed",
        SPREAD,
        "for key in keys:",
        "for key in keys[:1]:",
        "a node counts only with the topology keys of all constraints",
    ),
    Bug(
        "missing-label-resolvable",
        SPREAD,
        'Reason(f"{text} (missing required label)", False, HELPED_BY)',
        'Reason(f"{text} (missing required label)", True, HELPED_BY)',
        "no preemption gives a node a label",
    ),
    Bug(
        "terminating-pods-spread",
        TERM_COUNTS,
        "if self.key.live and pod.terminating:",
        "if False:",
        "spread does not count terminating pods",
    ),
    Bug(
        "terminating-pods-no-affinity",
        TERM_COUNTS,
        "if self.key.live and pod.terminating:",
        "if pod.terminating:",
        "affinity counts terminating pods",
    ),
    Bug(
        "empty-spread-selector-counts",
        TERM_COUNTS,
        "return spread.selector if spread.selector and spread.selector.requirements else None",
        "return spread.selector",
        "spread counts nothing for an empty selector",
    ),
    Bug(
        "spread-over-all-namespaces",
        TERM_COUNTS,
        "Part(counted(s), (terms.namespace,))",
        "Part(counted(s), (), Selector())",
        "spread counts pods of the pod's namespace",
    ),
    Bug(
        "match-label-keys-ignored",
        TERMS,
        "selector=with_labels(selector, {k: labels[k] for k in keys if k in labels}),",
        "selector=selector,",
        "matchLabelKeys narrow the selector",
    ),
    Bug(
        "spread-weight",
        SPREAD,
        "math.log(size + 2)",
        "math.log(size + 1)",
        "the weight of a topology is log(domains + 2)",
    ),
    Bug(
        "max-skew-in-score",
        SPREAD,
        "(spread.max_skew - 1)",
        "spread.max_skew",
        "a soft constraint adds maxSkew - 1",
    ),
    Bug(
        "spread-score-rounded-up",
        SPREAD,
        "return (raw + 0.5)",
        "return (raw + 1.0)",
        "raw spread scores are rounded to the nearest",
    ),
    Bug(
        "spread-score-reversed",
        SPREAD,
        "MAX_SCORE * (high + int(raw.min()) - values) // high",
        "MAX_SCORE * values // high",
        "fewer matching pods are better",
    ),
    Bug(
        "spread-score-from-zero",
        SPREAD,
        "(high + int(raw.min()) - values)",
        "(high - values)",
        "the least gets 100, the most does not get 0",
    ),
    Bug(
        "unlabelled-nodes-scored",
        SPREAD,
        "if not column.complete(view.cluster.node_count):",
        "if False:",
        "nodes without a soft constraint's label score 0",
    ),
    Bug(
        "hostname-domains-of-all-nodes",
        SPREAD,
        "size, counts = len(view), np",
        "size, counts = cluster.node_count, np",
        "only feasible nodes are domains of the host name",
    ),
)

INTER_POD_AFFINITY = (
    Bug(
        "terms-satisfied-one-by-one",
        POD_AFFINITY,
        "satisfied &= populated(together.matched, column)",
        "satisfied &= populated(_.matched, column)",
        "one pod must match all of the required affinity terms",
    ),
    Bug(
        "one-anti-term-hides-another",
        POD_AFFINITY,
        "tables[at] = tables[at] | closed if at in tables else closed",
        "tables[at] = closed",
        "the domains of all terms with one topology key are closed",
    ),
    Bug(
        "no-first-of-series",
        POD_AFFINITY,
        "if nobody and together.counts(",
        "if False and together.counts(",
        "a pod with affinity to itself may be the first",
    ),
    Bug(
        "anyone-is-first",
        POD_AFFINITY,
        "if nobody and together.counts(ask.pod, view.cluster.terms.namespaces):",
        "if nobody:",
        "only a pod that matches its own terms may be the first",
    ),
    Bug(
        "first-without-label",
        POD_AFFINITY,
        "return complete ",
        "return np.ones(len(view), dtype=np.bool_) ",
        "the first of a series needs nodes with the topology label",
    ),
    Bug(
        "existing-anti-affinity-ignored",
        POD_AFFINITY,
        "if role is Role.ANTI:",
        "if False:",
        "placed pods' anti-affinity keeps newcomers away",
    ),
    Bug(
        "anti-affinity-ignored",
        POD_AFFINITY,
        "for affinity, term in ask.own.anti:",
        "for affinity, term in ():",
        "a newcomer's anti-affinity keeps it away",
    ),
    Bug(
        "anti-affinity-reasons-swapped",
        POD_AFFINITY,
        "NO_AFFINITY, OWN_ANTI, OTHERS_ANTI = 1, 2, 4",
        "NO_AFFINITY, OWN_ANTI, OTHERS_ANTI = 1, 4, 2",
        "whose anti-affinity it is",
    ),
    Bug(
        "affinity-resolvable",
        POD_AFFINITY,
        '"node(s) didn\'t match pod affinity rules",\n                False,',
        '"node(s) didn\'t match pod affinity rules",\n                True,',
        "no preemption brings the pods that are missed",
    ),
    Bug(
        "unlabelled-nodes-are-a-domain",
        POD_AFFINITY,
        "table[0] = False",
        "table[0] = table[0]",
        "nodes without the topology label are in no domain",
    ),
    Bug(
        "unlabelled-nodes-preferred",
        POD_AFFINITY,
        "sums[0] = 0",
        "sums[0] += 0",
        "preferred terms say nothing about nodes without the label",
    ),
    Bug(
        "hard-weight-ignored",
        POD_AFFINITY,
        "yield self._args.hard_pod_affinity_weight, key, count",
        "yield 1, key, count",
        "hardPodAffinityWeight weighs placed pods' required terms",
    ),
    Bug(
        "soft-terms-of-others-ignored",
        POD_AFFINITY,
        "if role is Role.SOFT:",
        "if False:",
        "placed pods' preferences count too",
    ),
    Bug(
        "ignore-preferred-ignores-own",
        POD_AFFINITY,
        "if self._args.ignore_preferred_terms_of_existing_pods and not has_own:",
        "if self._args.ignore_preferred_terms_of_existing_pods:",
        "ignorePreferredTermsOfExistingPods leaves the newcomer's own",
    ),
    Bug(
        "affinity-score-rounded-up",
        POD_AFFINITY,
        "MAX_SCORE * ((total - low) / (high - low))",
        "np.ceil(MAX_SCORE * ((total - low) / (high - low)))",
        "scores are cut to integers",
    ),
    Bug(
        "owners-weight-ignored",
        TERM_COUNTS,
        "(Role.SOFT, w, affinity, term)",
        "(Role.SOFT, 1, affinity, term)",
        "placed pods' preferences have weights",
    ),
    Bug(
        "anti-preference-attracts",
        TERMS,
        "where[1], -1)",
        "where[1], 1)",
        "preferred anti-affinity counts against a domain",
    ),
    Bug(
        "namespace-selector-ignored",
        TERMS,
        'namespace_selector=label_selector(term.namespace_selector, f"{path}.namespaceSelector"),',
        "namespace_selector=None,",
        "a term reaches the namespaces that its selector selects",
    ),
    Bug(
        "own-namespace-added",
        TERMS,
        "own = not term.namespaces and term.namespace_selector is None",
        "own = not term.namespaces",
        "a namespaceSelector replaces the pod's own namespace",
    ),
    Bug(
        "namespace-without-object",
        TERM_COUNTS,
        "where.matches(NO_LABELS)",
        "False",
        "a selector that no labels satisfy counts pods of every namespace",
    ),
    Bug(
        "sums-lose-repeated-domains",
        TERM_COUNTS,
        "np.add.at(sums, column.codes[rows], amounts)",
        "sums[column.codes[rows]] += amounts",
        "NumPy adds once to an index that is given twice",
    ),
    Bug(
        "index-misses-exists",
        TERM_COUNTS,
        "if None in values:",
        "if False:",
        "terms with Exists are found",
    ),
    Bug(
        "index-first-value-only",
        POD_INDEX,
        "for v in requirement.values for uid",
        "for v in requirement.values[:1] for uid",
        "In has several values",
    ),
)

NODES = (
    Bug(
        "gt-and-lt-swapped",
        LABEL_COLUMNS,
        'numbers > bound if requirement.op == "Gt"',
        'numbers > bound if requirement.op == "Lt"',
        "Gt is greater",
    ),
    Bug(
        "gt-or-equal",
        LABEL_COLUMNS,
        "passing = numbers > bound",
        "passing = numbers >= bound",
        "Gt is strictly greater",
    ),
    Bug(
        "words-are-zero",
        LABEL_COLUMNS,
        "table = passing & valid",
        "table = passing",
        "a value that is no number passes neither Gt nor Lt",
    ),
    Bug(
        "not-in-needs-label",
        LABEL_COLUMNS,
        'return found if requirement.op == "In" else ~found',
        'return found if requirement.op == "In" else ~found & (codes != 0)',
        "NotIn holds for a node without the label",
    ),
    Bug(
        "pod-not-in-needs-label",
        SELECTORS,
        "return value is None or value not in self.values",
        "return value is not None and value not in self.values",
        "NotIn holds for a pod without the label",
    ),
    Bug(
        "last-term-decides",
        NODE_AFFINITY,
        "matched |= one_term(term, view)",
        "matched = one_term(term, view)",
        "any node selector term will do",
    ),
    Bug(
        "empty-term-matches",
        TERMS,
        'raise Wrong("", "an empty term matches nothing")',
        "return NodeTerm(named=named)",
        "an empty node selector term matches no node",
    ),
    Bug(
        "names-united",
        TERMS,
        "left = values if left is None else left & values",
        "left = values if left is None else left | values",
        "conditions on the name must all hold: a conflict",
    ),
    Bug(
        "one-named-term-narrows",
        NODE_AFFINITY,
        "if term.named is None:\n            return None",
        "if term.named is None:\n            continue",
        "a term without a name lets PreFilter pass every node",
    ),
    Bug(
        "names-not-in-ignored",
        NODE_AFFINITY,
        "if term.name_not_in:",
        "if False:",
        "matchFields NotIn excludes a node by name",
    ),
    Bug(
        "affinity-not-normalised",
        NODE_AFFINITY,
        "return raw if high == 0 else MAX_SCORE * raw // high",
        "return raw",
        "the best preferred node gets 100",
    ),
    Bug(
        "preference-weight-ignored",
        NODE_AFFINITY,
        "total += weight * one_term(term, view)",
        "total += one_term(term, view)",
        "preferred terms have weights",
    ),
    Bug(
        "cordon-not-tolerated",
        NODE_NAME,
        "if any(toleration.tolerates(CORDON) for toleration in ask.row.tolerations):",
        "if False:",
        "a pod can tolerate a cordon",
    ),
    Bug(
        "node-name-ignored",
        ROWS,
        'node_name=(spec.node_name or "") if insists else "",',
        'node_name="",',
        "a newcomer that names a node insists on it",
    ),
    Bug(
        "no-execute-forgotten",
        TAINTS,
        'HARD_EFFECTS = ("NoSchedule", "NoExecute")',
        'HARD_EFFECTS = ("NoSchedule",)',
        "NoExecute keeps newcomers away too",
    ),
    Bug(
        "toleration-effect-ignored",
        SELECTORS,
        "if self.effect and self.effect != taint.effect:",
        "if False:",
        "a toleration is for one effect",
    ),
    Bug(
        "toleration-needs-key",
        SELECTORS,
        "if self.key and self.key != taint.key:",
        "if self.key != taint.key:",
        "a toleration without a key is for all keys",
    ),
    Bug(
        "gt-tolerates",
        SELECTORS,
        'if self.operator == "Exists":',
        'if self.operator in ("Exists", "Gt"):',
        "Gt is behind a gate that is off",
    ),
    Bug(
        "any-effect-does-not-prefer",
        TAINTS,
        'if t.effect in ("", PREFER)]',
        "if t.effect == PREFER]",
        "a toleration of every effect is one of PreferNoSchedule",
    ),
    Bug(
        "taint-score-reversed",
        TAINTS,
        "return MAX_SCORE - MAX_SCORE * raw // high",
        "return MAX_SCORE * raw // high",
        "fewer taints are better",
    ),
    Bug(
        "taint-score-rounded-down",
        TAINTS,
        "return MAX_SCORE - MAX_SCORE * raw // high",
        "return MAX_SCORE * (high - raw) // high",
        "it is the subtracted part that is cut to an integer",
    ),
    Bug(
        "taint-weight",
        REGISTRY,
        '("TaintToleration", 3)',
        '("TaintToleration", 1)',
        "the default weight of taints is 3",
    ),
    Bug(
        "wildcard-newcomer",
        PORTS,
        "(port.ip == ANY_IP or ANY_IP in ips",
        "(ANY_IP in ips",
        "a port on 0.0.0.0 collides with one on any address",
    ),
    Bug(
        "wildcard-resident",
        PORTS,
        "or ANY_IP in ips or",
        "or",
        "a port on any address collides with one on 0.0.0.0",
    ),
    Bug(
        "protocol-ignored",
        ROWS,
        'HostPort(port.protocol or "TCP"',
        'HostPort("TCP"',
        "TCP and UDP do not collide",
    ),
    Bug(
        "init-ports-counted",
        ROWS,
        'sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]',
        "sidecars = list(spec.init_containers or ())",
        "host ports of plain init containers do not count",
    ),
    Bug(
        "sidecar-ports-ignored",
        ROWS,
        "for container in (*sidecars, *(spec.containers or ()))",
        "for container in spec.containers or ()",
        "host ports of sidecars count",
    ),
    Bug(
        "spread-of-images-ignored",
        IMAGES,
        "spread = len(holders) / cluster.node_count",
        "spread = 1.0",
        "an image that few nodes have counts less",
    ),
    Bug(
        "image-threshold-per-pod",
        IMAGES,
        "most = MOST_BYTES_PER_CONTAINER * ask.row.containers",
        "most = MOST_BYTES_PER_CONTAINER",
        "the upper threshold is per container",
    ),
    Bug(
        "image-port-is-a-tag",
        ROWS,
        'n if n.rfind(":") > n.rfind("/") else',
        'n if ":" in n else',
        "a registry's port is not a tag",
    ),
    Bug(
        "init-containers-without-images",
        ROWS,
        "containers=len(spec.init_containers or ()) + len(spec.containers or ()),",
        "containers=len(spec.containers or ()),",
        "init containers raise the image threshold",
    ),
)

RESOURCE_AMOUNTS = (
    Bug(
        "exact-fit-refused",
        RESOURCES,
        "view.free < self._needs(ask).need",
        "view.free <= self._needs(ask).need",
        "an exact fit fits",
    ),
    Bug(
        "exact-size-hopeless",
        RESOURCES,
        "np.logical_or.reduce(view.allocatable < need)",
        "np.logical_or.reduce(view.allocatable <= need)",
        "a pod of the node's whole size could fit after preemption",
    ),
    Bug(
        "too-many-pods-hopeless",
        RESOURCES,
        "need[PODS] = NOT_ASKED",
        "need[PODS] = 1",
        "too many pods can be helped by preemption",
    ),
    Bug(
        "unknown-resource-resolvable",
        RESOURCES,
        "if needs.unknown:\n            return np.ones(len(view), dtype=np.bool_)",
        "if False:\n            return np.ones(len(view), dtype=np.bool_)",
        "no preemption helps where no node has the resource",
    ),
    Bug(
        "sidecars-not-running-yet",
        REQUESTS,
        "_add(running, sidecars)",
        "_add(running, {})",
        "an init container runs beside the sidecars before it",
    ),
    Bug(
        "sidecars-stop",
        REQUESTS,
        "_add(result, amounts)",
        "_add({}, amounts)",
        "sidecars run beside the containers",
    ),
    Bug(
        "init-containers-free",
        REQUESTS,
        "_raise(result, peak)",
        "_raise(result, {})",
        "init containers may need more than the containers",
    ),
    Bug(
        "overhead-ignored",
        REQUESTS,
        "_add(result, pod.overhead)",
        "_add(result, {})",
        "overhead is added",
    ),
    Bug(
        "infeasible-resize-counts",
        REQUESTS,
        "result = {} if infeasible else dict(self.requests)",
        "result = dict(self.requests)",
        "what a node refused to resize to does not count",
    ),
    Bug(
        "allocated-ignored",
        REQUESTS,
        "_raise(result, self.allocated)",
        "_raise(result, {})",
        "during a resize the most of asked, given and allocated counts",
    ),
    Bug(
        "pod-level-hugepages-ignored",
        REQUESTS,
        'return name in ("cpu", "memory") or name.startswith("hugepages-")',
        'return name in ("cpu", "memory")',
        "huge pages can be asked for by the pod as a whole",
    ),
    Bug(
        "milli-rounded-down",
        QUANTITY,
        "return nano // 10**6 if nano < 0 else -(-nano // 10**6)",
        "return nano // 10**6",
        "cpu is rounded up to thousandths",
    ),
    Bug(
        "attachable-volumes-not-counted",
        REQUESTS,
        'name.startswith(("hugepages-", "attachable-volumes-"))',
        'name.startswith(("hugepages-",))',
        "attachable volumes are a resource",
    ),
    Bug(
        "failed-pods-hold",
        READ,
        'in ("Succeeded", "Failed")',
        'in ("Succeeded",)',
        "a failed pod holds nothing any more",
    ),
    Bug(
        "default-memory-decimal",
        REQUESTS,
        "100 * 10**6, 200 * 2**20 * 10**9",
        "100 * 10**6, 200 * 10**6 * 10**9",
        "scores take a container without a request for 200 Mi",
    ),
    Bug(
        "scored-by-pod-level",
        REQUESTS,
        "scored = total(replace(pod, whole=Ask()), use_status=False, defaults=DEFAULTS)",
        "scored = total(pod, use_status=False, defaults=DEFAULTS)",
        "NodeResourcesFit scores a newcomer without pod-level resources",
    ),
    Bug(
        "resized-newcomer-by-spec",
        REQUESTS,
        "placed = total(pod, use_status=True, defaults=missing)",
        "placed = total(pod, use_status=False, defaults=missing)",
        "scores take a placed pod by its status",
    ),
    Bug(
        "most-allocated-rounded-up",
        AMOUNTS,
        "multiply(part, PERCENT, part)\n        floor_divide(part, capacity, part)",
        "part = part * PERCENT // capacity if least else (part * PERCENT - 1) // capacity + 1",
        "MostAllocated is cut to an integer",
    ),
    Bug(
        "strategy-weights-ignored",
        AMOUNTS,
        "weights.dot(part) // weight",
        "part.sum(axis=0) // asked.width",
        "a strategy's resources have weights",
    ),
    Bug(
        "lacking-resource-weighs",
        AMOUNTS,
        "weights.dot(scores) // maximum(weights.dot(present), 1)",
        "weights.dot(scores) // weight",
        "what a node lacks does not weigh",
    ),
    Bug(
        "ratio-rounded-down",
        AMOUNTS,
        "(2 * asked.weights.dot(scores) + weight) // (2 * weight)",
        "asked.weights.dot(scores) // weight",
        "RequestedToCapacityRatio is rounded",
    ),
    Bug(
        "ratio-zero-weighs",
        AMOUNTS,
        "asked.weights.dot(scores > 0)",
        "asked.weights.dot(scores >= 0)",
        "a resource that scores 0 does not weigh",
    ),
    Bug(
        "falling-shape-rounded-down",
        RESOURCES,
        "(rise // (x1 - x0) if rise >= 0 else -(-rise // (x1 - x0)))",
        "rise // (x1 - x0)",
        "Go cuts towards zero",
    ),
    Bug(
        "balance-without-half",
        AMOUNTS,
        "multiply(deviation, FIFTY, deviation)",
        "multiply(deviation, np.array(100.0), deviation)",
        "two resources deviate by half their difference",
    ),
    Bug(
        "balance-of-present-two",
        AMOUNTS,
        "np.abs((first - last) / 2)",
        "np.abs(first - last)",
        "the same, where a node lacks a resource",
    ),
    Bug(
        "balance-variance",
        AMOUNTS,
        "deviation = np.sqrt(running_sum(squares) / at_least_1)",
        "deviation = running_sum(squares) / at_least_1",
        "it is the standard deviation",
    ),
    Bug(
        "balance-overcommitted",
        AMOUNTS,
        "np.minimum(used / np.maximum(capacity, 1), 1.0)",
        "np.minimum(used / np.maximum(capacity, 1), 9.0)",
        "a fraction is at most 1",
    ),
    Bug(
        "best-effort-balanced",
        RESOURCES,
        "nothing if asked.best_effort else by_balance(asked)",
        "by_balance(asked)",
        "a pod that requests nothing is not scored for balance",
    ),
    Bug(
        "unasked-scalars-scored",
        AMOUNTS,
        "if column is None or (amount == 0 and name not in NATIVE):",
        "if column is None:",
        "scalar resources count only for pods that ask for them",
    ),
    Bug(
        "balance-with-defaults",
        AMOUNTS,
        "requests = dict(ask.row.requests if real else ask.row.scored)",
        "requests = dict(ask.row.scored)",
        "balance takes real requests",
    ),
)

# These show only when a case goes on, and verdicts and counts are kept through its changes.
KEEPING: tuple[Bug, ...] = (
    Bug(
        "domain-sums-not-taken-back",
        TERM_COUNTS,
        "self._sums(column)[column.codes[row]] += amount",
        "self._sums(column)[column.codes[row]] += abs(amount)",
        "a pod that goes is no longer counted in its domain",
    ),
    Bug(
        "relabelled-node-counted-twice",
        TERM_COUNTS,
        "sums[before] -= amount",
        "sums[before] -= 0",
        "a node that moves to another domain takes its pods along",
    ),
    Bug(
        "eligible-pods-stay",
        TERM_COUNTS,
        "self.sums[old] -= amount",
        "self.sums[old] -= 0",
        "the same, for spread",
    ),
    Bug(
        "spread-never-refreshed",
        SPREAD,
        "if sums.position == log.head:",
        "if sums.position >= 0:",
        "which nodes count for spread follows their labels and taints",
    ),
    Bug(
        "ports-stay",
        CLUSTER,
        "self._use_ports(row, pod.row.ports, -1)",
        "self._use_ports(row, pod.row.ports, 1)",
        "a pod that goes frees its host ports",
    ),
    Bug(
        "namespace-labels-not-followed",
        CLUSTER,
        "resident.matched = self.terms.counting(resident.pod)",
        "pass",
        "terms with a namespaceSelector follow the labels of namespaces",
    ),
    Bug(
        "cordon-not-logged",
        NODE_VALUES,
        "return (self.labels, self.taints, self.unschedulable, self.uid)",
        "return (self.labels, self.taints, self.uid)",
        "kept verdicts follow cordons",
    ),
    Bug(
        "taints-not-logged",
        NODE_VALUES,
        "return (self.labels, self.taints, self.unschedulable, self.uid)",
        "return (self.labels, self.unschedulable, self.uid)",
        "kept verdicts follow taints",
    ),
    Bug(
        "scored-beside-the-refused",
        VERDICTS,
        "rows = (verdict >= 0).nonzero()[0]",
        "rows = np.arange(len(verdict))",
        "only nodes that pass are held against each other",
    ),
    Bug(
        "highest-never-falls",
        KEPT,
        "return self.high == self.most and verdict.item(self.high_row) >= 0",
        "return self.high == self.most",
        "a relative score falls with the row that had the highest",
    ),
    Bug(
        "image-holders-not-followed",
        IMAGES,
        "*[versions.get(name, 0) for name in ask.pod.row.images]",
        "",
        "kept scores follow which nodes hold an image",
    ),
    Bug(
        "node-count-not-followed",
        IMAGES,
        "return (len(cluster.rows), *[",
        "return (0, *[",
        "how far an image has spread depends on the number of nodes",
    ),
    Bug(
        "load-log-not-read",
        VERDICTS,
        "if kept.load_position == head:",
        "if kept.load_position >= 0:",
        "kept verdicts follow placements",
    ),
)

ABOUT_VOLUMES: tuple[Bug, ...] = (
    Bug(
        "half-bound-is-bound",
        "core/model/volumes.py",
        'return self.completed and self.volume != ""',
        'return self.volume != ""',
        "a claim is bound only when that is completed",
    ),
    Bug(
        "terms-of-the-last-volume-only",
        VOLUMES,
        "unreached |= ~any_term(use.volume.terms, view)",
        "unreached = ~any_term(use.volume.terms, view)",
        "every volume must be reached",
    ),
    Bug(
        "missing-volume-hides-affinity",
        VOLUMES,
        "np.where(unreached, np.int8(UNREACHED), np.int8(NO_VOLUME))",
        "np.where(unreached, np.int8(NO_VOLUME), np.int8(NO_VOLUME))",
        "the first claim that fails on a node gives the reason",
    ),
    Bug(
        "selected-node-ignored",
        VOLUMES,
        "made = view.named((claim.selected_node,))",
        "pass",
        "a claim that was given a node is made there only",
    ),
    Bug(
        "empty-selected-node-is-none",
        READ_VOLUMES,
        "selected_node=notes.get(SELECTED_NODE),",
        "selected_node=notes.get(SELECTED_NODE) or None,",
        "an annotation without a value names no node",
    ),
    Bug(
        "topologies-ignored",
        VOLUMES,
        "if use.storage_class.topologies:",
        "if False:",
        "volumes are made where the class allows it",
    ),
    Bug(
        "no-provisioner-provisions",
        "core/model/volumes.py",
        'NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")',
        'NO_PROVISIONER = ("",)',
        "a class without a provisioner makes nothing",
    ),
    Bug(
        "lost-after-deleting",
        VOLUMES,
        "if claim.lost:",
        "if claim.lost and not claim.deleting:",
        "that its volume is gone is said first",
    ),
    Bug(
        "anybodys-ephemeral-volume",
        VOLUMES,
        "if use.ephemeral and claim.owner != ask.row.claim_owner:",
        "if use.ephemeral and not claim.owner:",
        "a generic ephemeral volume belongs to its pod",
    ),
    Bug(
        "any-owner-controls",
        READ_VOLUMES,
        "for o in metadata.owner_references or () if o.controller]",
        "for o in metadata.owner_references or ()]",
        "only the controller owns a claim",
    ),
    Bug(
        "one-pod-anywhere-but-here",
        VOLUMES,
        "use.users and not use.ephemeral",
        "len(use.users) > 1 and not use.ephemeral",
        "one other pod is enough",
    ),
    Bug(
        "other-namespaces-claims",
        READ_VOLUMES,
        "claims.append(f\"{namespace}/{volume.persistent_volume_claim.claim_name or ''}\")",
        "claims.append(f\"default/{volume.persistent_volume_claim.claim_name or ''}\")",
        "a pod uses the claims of its own namespace",
    ),
    Bug(
        "old-class-annotation-ignored",
        READ_VOLUMES,
        'storage_class=notes.get(_CLASS, spec.storage_class_name or ""),',
        'storage_class=spec.storage_class_name or "",',
        "the old annotation is stronger than the field",
    ),
    Bug(
        "zones-not-split",
        READ_VOLUMES,
        '_BETWEEN_ZONES = "__"',
        '_BETWEEN_ZONES = "--"',
        "a volume may be in several zones",
    ),
    Bug(
        "unzoned-nodes-refused",
        VOLUMES,
        "return (outside & zoned).view(np.int8)",
        "return outside.view(np.int8)",
        "a node without any zone label takes every volume",
    ),
    Bug(
        "newer-label-not-looked-at",
        VOLUMES,
        "inside |= (codes == 0) & newer",
        "inside |= False & newer",
        "an old label of a volume is matched by the node's newer one",
    ),
    Bug(
        "rejected-after-narrowing",
        "core/engine/profile.py",
        "self.rejects.append((len(self.refusers), plugin))",
        "self.rejects.insert(0, (len(self.refusers), plugin))",
        "the first plugin that rejects the pod says why",
    ),
    Bug(
        "any-volume-will-do",
        STORAGE,
        "return Use(key, ephemeral, claim, self.volumes.get(claim.volume), users=users)",
        "return Use(key, ephemeral, claim, Volume(claim.volume), users=users)",
        "volumes decide",
    ),
    Bug(
        "claims-not-asked-on-top",
        VERDICTS,
        "if ask.own is not None or ask.concerning or ask.pod.row.claims:",
        "if ask.own is not None or ask.concerning:",
        "pods with claims get more than what is kept for their template",
    ),
    Bug(
        "rejection-not-on-top",
        VERDICTS,
        "if self._rejection(ask, wide.rejects) is not None:",
        "if False:",
        "a pod whose claims are not there goes nowhere",
    ),
)

BUGS: tuple[Bug, ...] = (*TOPOLOGY_SPREAD, *INTER_POD_AFFINITY, *NODES, *RESOURCE_AMOUNTS)


def plant(bug: Bug, source: Path) -> None:
    """Writes the bug into a copy of src/bayplan."""
    path = source / bug.file
    text = path.read_text()
    count = text.count(bug.old)
    if count != 1:
        raise LookupError(
            f"planted bug {bug.name}: in {bug.file} its text stands {count} times, not once; "
            f"the code has moved on, so aim the bug anew: {bug.old!r}"
        )
    path.write_text(text.replace(bug.old, bug.new))
