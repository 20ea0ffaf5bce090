// The kubelet's own merging of NUMA hints: a case per line in, an answer per line out, both JSON.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

type hint struct {
	Zones     []int `json:"zones"` // none: any
	Preferred bool  `json:"preferred"`
}

type question struct {
	Policy string            `json:"policy"`
	Count  int               `json:"count"` // of zones
	Hints  map[string][]hint `json:"hints"` // by resource
}

type answer struct {
	Admit bool  `json:"admit"`
	Zones []int `json:"zones"` // none: any
}

func merged(asked question) answer {
	nodes := make([]int, asked.Count)
	for i := range nodes {
		nodes[i] = i
	}
	info := &topologymanager.NUMAInfo{Nodes: nodes}
	options := topologymanager.PolicyOptions{}
	policies := map[string]topologymanager.Policy{
		"none":             topologymanager.NewNonePolicy(),
		"best-effort":      topologymanager.NewBestEffortPolicy(info, options),
		"restricted":       topologymanager.NewRestrictedPolicy(info, options),
		"single-numa-node": topologymanager.NewSingleNumaNodePolicy(info, options),
	}
	given := map[string][]topologymanager.TopologyHint{}
	for name, hints := range asked.Hints {
		given[name] = []topologymanager.TopologyHint{}
		for _, each := range hints {
			found := topologymanager.TopologyHint{Preferred: each.Preferred}
			if each.Zones != nil {
				mask, err := bitmask.NewBitMask(each.Zones...)
				if err != nil {
					log.Fatal(err)
				}
				found.NUMANodeAffinity = mask
			}
			given[name] = append(given[name], found)
		}
	}
	best, admit := policies[asked.Policy].Merge(klog.Background(), []map[string][]topologymanager.TopologyHint{given})
	result := answer{Admit: admit}
	if best.NUMANodeAffinity != nil {
		result.Zones = best.NUMANodeAffinity.GetBits()
	}
	return result
}

func main() {
	klog.SetOutput(os.Stderr)
	lines, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		said, err := json.Marshal(merged(asked))
		if err != nil {
			log.Fatal(err)
		}
		out.Write(append(said, '\n'))
		out.Flush()
	}
}
