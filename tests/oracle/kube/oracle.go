package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// maxFrameworks bounds a worker's memory of frameworks; cases with odd arguments are rare.
const maxFrameworks = 256

// worker answers one case at a time. Frameworks are built once per set of plugins and arguments; the
// snapshot and the namespaces behind them change with every case. It is the plugins' SharedLister.
type worker struct {
	*cache.Snapshot
	registry       frameworkruntime.Registry
	informers      informers.SharedInformerFactory
	namespaces     clientcache.Indexer
	claims         clientcache.Indexer
	volumes        clientcache.Indexer
	storageClasses clientcache.Indexer
	waiting        clientcache.Indexer // pods
	budgets        clientcache.Indexer
	preemptor      *preemptor
	recorder       *metrics.MetricAsyncRecorder
	frameworks     map[string]framework.Framework
}

func newWorker() (*worker, error) {
	// The informers are never started: the lister reads the indexer, which every case fills itself.
	factory := informers.NewSharedInformerFactory(nil, 0)
	w := &worker{
		Snapshot:       cache.NewEmptySnapshot(),
		registry:       frameworkruntime.Registry{},
		informers:      factory,
		namespaces:     factory.Core().V1().Namespaces().Informer().GetIndexer(),
		claims:         factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(),
		volumes:        factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		storageClasses: factory.Storage().V1().StorageClasses().Informer().GetIndexer(),
		waiting:        factory.Core().V1().Pods().Informer().GetIndexer(),
		budgets:        factory.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer(),
		recorder:       metrics.NewMetricsAsyncRecorder(1000, time.Hour, make(chan struct{})),
		frameworks:     map[string]framework.Framework{},
	}
	for name, create := range plugins.NewInTreeRegistry() {
		w.registry[name] = func(ctx context.Context, args apiruntime.Object, h fwk.Handle) (fwk.Plugin, error) {
			return create(ctx, args, handle{h})
		}
	}
	w.registry[names.DefaultPreemption] = w.newPreemption
	// Also finds out at once, not at the first case, whether anything can be built at all.
	_, err := w.framework(&Config{}, filterPlugins.Union(scorePlugins))
	return w, err
}

func (w *worker) framework(c *Config, plugins sets.Set[string]) (framework.Framework, error) {
	encoded, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprint(sets.List(plugins), string(encoded))
	if found, ok := w.frameworks[key]; ok {
		return found, nil
	}
	profile, err := c.profile(plugins)
	if err != nil {
		return nil, err
	}
	built, err := frameworkruntime.NewFramework(
		context.Background(), w.registry, profile,
		frameworkruntime.WithSnapshotSharedLister(w),
		frameworkruntime.WithInformerFactory(w.informers),
		frameworkruntime.WithSharedDRAManager(noDRA{}),
		frameworkruntime.WithPodNominator(noNominations{}),
		frameworkruntime.WithMetricsRecorder(w.recorder),
		frameworkruntime.WithParallelism(1))
	if err != nil {
		return nil, err
	}
	if len(w.frameworks) >= maxFrameworks {
		clear(w.frameworks)
	}
	w.frameworks[key] = built
	return built, nil
}

func (w *worker) answer(c *Case) (*Answer, error) {
	w.Snapshot = cache.NewSnapshot(c.Pods, c.Nodes)
	for indexer, objects := range map[clientcache.Indexer][]any{
		w.namespaces: anys(c.Namespaces), w.claims: anys(c.Claims), w.volumes: anys(c.Volumes),
		w.storageClasses: anys(c.StorageClasses),
	} {
		if err := indexer.Replace(objects, ""); err != nil {
			return nil, err
		}
	}
	if c.Preempt {
		return w.preempt(c)
	}
	fw, err := w.framework(&c.Config, filterPlugins.Union(scorePlugins))
	if err != nil {
		return nil, err
	}

	ctx, state := context.Background(), framework.NewCycleState()
	statuses, err := w.filter(ctx, fw, state, c.Pod)
	if err != nil {
		return nil, err
	}
	answer := sorted(statuses)
	if c.Refusers {
		if answer.Refusers, err = w.refusers(ctx, fw, c); err != nil {
			return nil, err
		}
	}
	if c.Scores {
		if answer.Scores, err = w.scores(ctx, fw, state, c.Pod, answer.Feasible); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// sorted is the answer that nodes' statuses make.
func sorted(statuses map[string]*fwk.Status) *Answer {
	answer := &Answer{Feasible: []string{}, Reasons: map[string][]string{}, Unresolvable: []string{}}
	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		status := statuses[name]
		if status.IsSuccess() {
			answer.Feasible = append(answer.Feasible, name)
			continue
		}
		answer.Reasons[name] = reasons(status)
		if status.Code() == fwk.UnschedulableAndUnresolvable {
			answer.Unresolvable = append(answer.Unresolvable, name)
		}
	}
	return answer
}

func anys[T any](objects []T) []any {
	list := make([]any, len(objects))
	for i, object := range objects {
		list[i] = object
	}
	return list
}

// filter gives every node's status as Scheduler.findNodesThatFitPod does, without its sampling.
func (w *worker) filter(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod,
) (map[string]*fwk.Status, error) {
	nodes, err := w.List()
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	result, preFilter, restricting := fw.RunPreFilterPlugins(ctx, state, pod)
	if !preFilter.IsSuccess() && !preFilter.IsRejected() {
		return nil, preFilter.AsError()
	}
	outside := fwk.NewStatus(
		fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(restricting)))

	statuses := make(map[string]*fwk.Status, len(nodes))
	for _, node := range nodes {
		name := node.Node().Name
		switch {
		case !preFilter.IsSuccess():
			statuses[name] = preFilter
		case !result.AllNodes() && !result.NodeNames.Has(name):
			statuses[name] = outside
		default:
			status := fw.RunFilterPlugins(ctx, state, pod, node)
			if !status.IsSuccess() && !status.IsRejected() {
				return nil, status.AsError()
			}
			statuses[name] = status
		}
	}
	return statuses, nil
}

// reasons are the status's, in its order; the plugin names extended resources in the random order of a
// Go map, so those, which come last, are sorted.
func reasons(status *fwk.Status) []string {
	list := slices.Clone(status.Reasons())
	if status.Plugin() == names.NodeResourcesFit {
		fixed := []string{
			"Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"}
		first := slices.IndexFunc(list, func(r string) bool { return !slices.Contains(fixed, r) })
		if first >= 0 {
			slices.Sort(list[first:])
		}
	}
	return list
}

// refusers runs every filter plugin of fw alone, in its order.
func (w *worker) refusers(ctx context.Context, fw framework.Framework, c *Case) (map[string][]string, error) {
	refusers := map[string][]string{}
	for _, plugin := range fw.ListPlugins().Filter.Enabled {
		alone, err := w.framework(&c.Config, sets.New(plugin.Name))
		if err != nil {
			return nil, err
		}
		statuses, err := w.filter(ctx, alone, framework.NewCycleState(), c.Pod)
		if err != nil {
			return nil, err
		}
		for name, status := range statuses {
			if !status.IsSuccess() {
				refusers[name] = append(refusers[name], plugin.Name)
			}
		}
	}
	return refusers, nil
}

// scores runs PreScore, Score and NormalizeScore over the feasible nodes. kube-scheduler does not score
// a single feasible node; this does. RunScorePlugins multiplies by the weight, which is undone here.
func (w *worker) scores(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *v1.Pod, feasible []string,
) (map[string]map[string]int64, error) {
	nodes := make([]fwk.NodeInfo, len(feasible))
	for i, name := range feasible {
		node, err := w.Get(name)
		if err != nil {
			return nil, err
		}
		nodes[i] = node
	}
	scores := make(map[string]map[string]int64, len(nodes))
	if len(nodes) == 0 {
		return scores, nil
	}
	if status := fw.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return nil, status.AsError()
	}
	weighted, status := fw.RunScorePlugins(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	weights := map[string]int64{}
	for _, plugin := range fw.ListPlugins().Score.Enabled {
		weights[plugin.Name] = int64(plugin.Weight)
	}
	for _, node := range weighted {
		scores[node.Name] = map[string]int64{"total": node.TotalScore}
		for _, score := range node.Scores {
			scores[node.Name][score.Name] = score.Score / weights[score.Name]
		}
	}
	return scores, nil
}

// handle is the framework's, but plugins work on the worker's own goroutine: faster for small cases, and
// a panic in a plugin can be recovered (not in Score, which the framework runs on its own goroutines).
type handle struct{ fwk.Handle }

func (handle) Parallelizer() fwk.Parallelizer { return serial{} }

type serial struct{}

func (serial) Until(_ context.Context, pieces int, do workqueue.DoWorkPieceFunc, _ string) {
	for i := range pieces {
		do(i)
	}
}

// noDRA is a cluster without device classes; the resource plugins ask for nothing else then.
type noDRA struct{ fwk.SharedDRAManager }

func (noDRA) DeviceClassResolver() fwk.DeviceClassResolver { return noDeviceClasses{} }

type noDeviceClasses struct{}

func (noDeviceClasses) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass { return nil }
