package main

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// Case is one input line.
type Case struct {
	Nodes      []*v1.Node      `json:"nodes"`
	Pods       []*v1.Pod       `json:"pods"`
	Namespaces []*v1.Namespace `json:"namespaces"`
	Pod        *v1.Pod         `json:"pod"`

	Claims         []*v1.PersistentVolumeClaim `json:"persistentvolumeclaims"`
	Volumes        []*v1.PersistentVolume      `json:"persistentvolumes"`
	StorageClasses []*storagev1.StorageClass   `json:"storageclasses"`

	Budgets []*policyv1.PodDisruptionBudget `json:"poddisruptionbudgets"` // for preemption

	Preempt  bool `json:"preempt"`  // only the filters and, where no node passes, preemption
	Scores   bool `json:"scores"`   // also score the feasible nodes
	Refusers bool `json:"refusers"` // also name every plugin that refuses a node
	Defaults bool `json:"defaults"` // first default pod and pods as the API server does

	Config
}

// Config holds the plugin arguments a case may set; kube-scheduler's own defaults otherwise.
type Config struct {
	// Fit is a whole NodeResourcesFitArgs (kubescheduler.config.k8s.io/v1).
	Fit *configv1.NodeResourcesFitArgs `json:"fit,omitempty"`
	// Strategy replaces scoringStrategy of NodeResourcesFitArgs.
	Strategy *Strategy `json:"strategy,omitempty"`
	// Balanced holds the resources of NodeResourcesBalancedAllocationArgs.
	Balanced                           []configv1.ResourceSpec `json:"balanced,omitempty"`
	HardPodAffinityWeight              *int32                  `json:"hardPodAffinityWeight,omitempty"`
	IgnorePreferredTermsOfExistingPods bool                    `json:"ignorePreferredTermsOfExistingPods,omitempty"`
	AddedAffinity                      *v1.NodeAffinity        `json:"addedAffinity,omitempty"`
}

// Strategy is a ScoringStrategy with the shape of RequestedToCapacityRatio (scores 0 to 10) beside it.
type Strategy struct {
	Type      configv1.ScoringStrategyType     `json:"type"`
	Resources []configv1.ResourceSpec          `json:"resources,omitempty"`
	Shape     []configv1.UtilizationShapePoint `json:"shape,omitempty"`
}

// filterPlugins answer "feasible" and "reasons"; scorePlugins answer "scores".
var (
	filterPlugins = sets.New(
		names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity, names.NodePorts,
		names.NodeResourcesFit, names.VolumeRestrictions, names.VolumeBinding, names.VolumeZone,
		names.PodTopologySpread, names.InterPodAffinity)
	scorePlugins = sets.New(
		names.TaintToleration, names.NodeAffinity, names.NodeResourcesFit, names.PodTopologySpread,
		names.InterPodAffinity, names.NodeResourcesBalancedAllocation, names.ImageLocality)
	// A profile is not valid without these two; they are never run.
	requiredPlugins = sets.New(names.PrioritySort, names.DefaultBinder)
)

// prepare drops what a scheduler's cache would not hold: terminal pods, and pods that are bound nowhere
// or to an unknown node (NewSnapshot would make a NodeInfo without a Node of the latter).
func (c *Case) prepare() error {
	if c.Pod == nil {
		return errors.New("the case has no pod")
	}
	known := sets.New[string]()
	for _, node := range c.Nodes {
		if node == nil || node.Name == "" || known.Has(node.Name) {
			return errors.New("a node is null, has no name, or is there twice")
		}
		known.Insert(node.Name)
	}
	if slices.Contains(c.Pods, nil) || slices.Contains(c.Namespaces, nil) {
		return errors.New("null among pods or namespaces")
	}
	if slices.Contains(c.Claims, nil) || slices.Contains(c.Volumes, nil) || slices.Contains(c.StorageClasses, nil) {
		return errors.New("null among claims, volumes or storage classes")
	}
	if slices.Contains(c.Budgets, nil) {
		return errors.New("null among budgets")
	}
	c.Pods = slices.DeleteFunc(c.Pods, func(pod *v1.Pod) bool {
		terminal := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
		return terminal || !known.Has(pod.Spec.NodeName)
	})
	if c.Defaults {
		for _, pod := range append(c.Pods, c.Pod) {
			if pod.Namespace == "" {
				pod.Namespace = v1.NamespaceDefault
			}
			corev1.SetObjectDefaults_Pod(pod)
		}
	}
	return nil
}

// profile is kube-scheduler's default profile, reduced to some plugins, with the case's arguments.
func (c *Config) profile(plugins sets.Set[string]) (*config.KubeSchedulerProfile, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := &defaults.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(
		profile.Plugins.MultiPoint.Enabled,
		func(p config.Plugin) bool { return !plugins.Has(p.Name) && !requiredPlugins.Has(p.Name) })

	for i := range profile.PluginConfig {
		entry := &profile.PluginConfig[i]
		switch entry.Name {
		case names.NodeResourcesFit:
			entry.Args, err = c.fitArgs()
		case names.NodeResourcesBalancedAllocation:
			args := &configv1.NodeResourcesBalancedAllocationArgs{Resources: c.Balanced}
			entry.Args, err = convert(args, &config.NodeResourcesBalancedAllocationArgs{})
		case names.NodeAffinity:
			entry.Args = &config.NodeAffinityArgs{AddedAffinity: c.AddedAffinity}
		case names.InterPodAffinity:
			args := &configv1.InterPodAffinityArgs{
				HardPodAffinityWeight:              c.HardPodAffinityWeight,
				IgnorePreferredTermsOfExistingPods: c.IgnorePreferredTermsOfExistingPods,
			}
			entry.Args, err = convert(args, &config.InterPodAffinityArgs{})
		case names.DefaultPreemption: // every node is tried
			entry.Args = &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 100}
		case names.PodTopologySpread: // no default constraints
			entry.Args = &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}
		}
		if err != nil {
			return nil, err
		}
	}
	return profile, nil
}

func (c *Config) fitArgs() (runtime.Object, error) {
	args := &configv1.NodeResourcesFitArgs{}
	if c.Fit != nil {
		args = c.Fit.DeepCopy()
	}
	if s := c.Strategy; s != nil {
		args.ScoringStrategy = &configv1.ScoringStrategy{Type: s.Type, Resources: s.Resources}
		if s.Shape != nil {
			args.ScoringStrategy.RequestedToCapacityRatio = &configv1.RequestedToCapacityRatioParam{Shape: s.Shape}
		}
	}
	return convert(args, &config.NodeResourcesFitArgs{})
}

// convert applies the API's defaults to plugin arguments and turns them into the internal type.
func convert(versioned, internal runtime.Object) (runtime.Object, error) {
	scheme.Scheme.Default(versioned)
	return internal, scheme.Scheme.Convert(versioned, internal, nil)
}
