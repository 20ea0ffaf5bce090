package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientcache "k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxOrders bounds the orders of equal pods that are tried on one node.
const maxOrders = 5040

// preemptPlugins answer "preemption": the filters, and what runs when none of them lets a node through.
var preemptPlugins = filterPlugins.Clone().Insert(names.DefaultPreemption)

// Preemption is what PostFilter does for a pod that fits nowhere.
type Preemption struct {
	Node    string `json:"node"`    // nominated; empty where preemption does not help
	Message string `json:"message"` // of PostFilter's status; empty where it helps
	// Candidates are the nodes where it would help. The first outcome is that of this run.
	Candidates map[string][]Outcome `json:"candidates"`
}

// Outcome is what may be chosen on one node: pods of equal priority and start time have no order
// among them (sort.Slice is not stable, and a pod that has not started starts "now"), so there can
// be several.
type Outcome struct {
	Victims    []string `json:"victims"` // namespace/name
	Violations int      `json:"violations"`
}

// preemptor is DefaultPreemption with an eye on what it finds on each node.
type preemptor struct {
	preemption.Interface
	found map[string]Outcome
}

func (p *preemptor) SelectVictimsOnNode(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, pdbs []*policyv1.PodDisruptionBudget,
) ([]*v1.Pod, int, *fwk.Status) {
	victims, violations, status := p.Interface.SelectVictimsOnNode(ctx, state, pod, node, pdbs)
	if status.IsSuccess() && len(victims) > 0 {
		p.found[node.Node().Name] = outcome(victims, violations)
	}
	return victims, violations, status
}

func outcome(victims []*v1.Pod, violations int) Outcome {
	found := Outcome{Victims: make([]string, len(victims)), Violations: violations}
	for i, victim := range victims {
		found.Victims[i] = victim.Namespace + "/" + victim.Name
	}
	return found
}

// newPreemption makes the plugin: every node is tried, and the victims stay where they are.
func (w *worker) newPreemption(ctx context.Context, args apiruntime.Object, h fwk.Handle) (fwk.Plugin, error) {
	// Without features it removes the victims at once, not in the background.
	plugin, err := defaultpreemption.New(ctx, args, handle{h}, feature.Features{})
	if err != nil {
		return nil, err
	}
	plugin.Executor.PreemptPod = func(
		context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *v1.Pod, string,
	) error {
		return nil
	}
	w.preemptor = &preemptor{Interface: plugin}
	plugin.Evaluator.Interface = w.preemptor
	return plugin, nil
}

// preempt runs the filters and, if no node passes, PostFilter.
func (w *worker) preempt(c *Case) (*Answer, error) {
	fw, err := w.framework(&Config{}, preemptPlugins)
	if err != nil {
		return nil, err
	}
	for indexer, objects := range map[clientcache.Indexer][]any{
		w.waiting: {c.Pod}, w.budgets: anys(c.Budgets),
	} {
		if err := indexer.Replace(objects, ""); err != nil {
			return nil, err
		}
	}
	ctx, state := context.Background(), framework.NewCycleState()
	statuses, err := w.filter(ctx, fw, state, c.Pod)
	if err != nil {
		return nil, err
	}
	answer := sorted(statuses)
	if len(answer.Feasible) > 0 {
		return answer, nil
	}
	w.preemptor.found = map[string]Outcome{}
	refused := framework.NewNodeToStatus(statuses, fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
	result, status := fw.RunPostFilterPlugins(ctx, state, c.Pod, refused)
	if !status.IsSuccess() && !status.IsRejected() {
		return nil, status.AsError()
	}
	answer.Preemption = &Preemption{Message: status.Message(), Candidates: map[string][]Outcome{}}
	if status.IsSuccess() {
		answer.Preemption.Node = result.NominatedNodeName
	}
	for name, first := range w.preemptor.found {
		if answer.Preemption.Candidates[name], err = w.outcomes(ctx, state, c, name, first); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// outcomes are all that DefaultPreemption may choose on a node, the given one first.
func (w *worker) outcomes(
	ctx context.Context, state fwk.CycleState, c *Case, name string, first Outcome,
) ([]Outcome, error) {
	node, err := w.Get(name)
	if err != nil {
		return nil, err
	}
	var lower []fwk.PodInfo
	for _, pod := range node.GetPods() {
		if corev1helpers.PodPriority(pod.GetPod()) < corev1helpers.PodPriority(c.Pod) {
			lower = append(lower, pod)
		}
	}
	orders := orders(lower)
	if orders == nil {
		return nil, fmt.Errorf("too many pods on %s are equal", name)
	}
	found := []Outcome{first}
	logger := klog.FromContext(ctx)
	for _, order := range orders {
		arranged := node.Snapshot()
		for _, pod := range lower {
			if err := arranged.RemovePod(logger, pod.GetPod()); err != nil {
				return nil, err
			}
		}
		for _, pod := range order {
			arranged.AddPodInfo(pod)
		}
		victims, violations, status := w.preemptor.Interface.SelectVictimsOnNode(
			ctx, state.Clone(), c.Pod, arranged, c.Budgets)
		if !status.IsSuccess() {
			return nil, errors.New("another order of equal pods leaves no candidate")
		}
		another := outcome(victims, violations)
		same := func(o Outcome) bool {
			return o.Violations == another.Violations && slices.Equal(o.Victims, another.Victims)
		}
		if !slices.ContainsFunc(found, same) {
			found = append(found, another)
		}
	}
	return found, nil
}

// orders are all the orders by importance; nil if there are too many.
func orders(pods []fwk.PodInfo) [][]fwk.PodInfo {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, compare)
	all := [][]fwk.PodInfo{{}}
	for len(pods) > 0 {
		equal := 1
		for equal < len(pods) && compare(pods[0], pods[equal]) == 0 {
			equal++
		}
		var longer [][]fwk.PodInfo
		for _, order := range all {
			for _, next := range permutations(pods[:equal], maxOrders) {
				if len(longer) == maxOrders {
					return nil
				}
				longer = append(longer, slices.Concat(order, next))
			}
		}
		all, pods = longer, pods[equal:]
	}
	return all
}

// permutations are at most this many and one more.
func permutations(pods []fwk.PodInfo, most int) [][]fwk.PodInfo {
	if len(pods) == 0 {
		return [][]fwk.PodInfo{{}}
	}
	var all [][]fwk.PodInfo
	for i, pod := range pods {
		for _, rest := range permutations(slices.Concat(pods[:i], pods[i+1:]), most) {
			if len(all) > most {
				return all
			}
			all = append(all, append([]fwk.PodInfo{pod}, rest...))
		}
	}
	return all
}

// compare puts the more important first, as util.MoreImportantPod does; pods that have not started
// are the last, and equal.
func compare(a, b fwk.PodInfo) int {
	one, other := a.GetPod(), b.GetPod()
	if order := cmp.Compare(corev1helpers.PodPriority(other), corev1helpers.PodPriority(one)); order != 0 {
		return order
	}
	switch from, since := one.Status.StartTime, other.Status.StartTime; {
	case from == nil && since == nil:
		return 0
	case from == nil:
		return 1
	case since == nil:
		return -1
	default:
		return from.Compare(since.Time)
	}
}

// noNominations is a queue in which no pod has a nominated node.
type noNominations struct{ fwk.PodNominator }

func (noNominations) NominatedPodsForNode(string) []fwk.PodInfo { return nil }
