// Command kube-oracle answers scheduling questions with kube-scheduler 1.36.3's own plugins, as a
// test oracle for Bayplan: JSON lines in, JSON lines out, in the same order, one flush per line.
//
//	in:  {"nodes":[Node…], "pods":[Pod… bound], "namespaces":[Namespace…], "pod":Pod,
//	      "persistentvolumeclaims"?:…, "persistentvolumes"?:…, "storageclasses"?:…,
//	      "poddisruptionbudgets"?:…, …options (config.go)}
//	out: {"feasible":[…], "reasons":{node:[…]}, "unresolvable":[…], "refusers"?:…, "scores"?:…,
//	      "preemption"?:…} or {"error":"…"}
//
// The plugins, their order, weights and default arguments, the framework runtime and the snapshot are
// the ones of k8s.io/kubernetes; only the cluster behind them is replaced (oracle.go).
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	kjson "sigs.k8s.io/json"
)

// Answer is what is written for one case.
type Answer struct {
	Feasible []string            `json:"feasible"`
	Reasons  map[string][]string `json:"reasons"`
	// Unresolvable nodes: status UnschedulableAndUnresolvable, preemption cannot help there.
	Unresolvable []string `json:"unresolvable"`
	// Refusers, on demand: all the filter plugins that refuse the node when each runs alone.
	Refusers map[string][]string `json:"refusers,omitzero"`
	// Scores, on demand: normalized, before weighting; "total" is the weighted sum.
	// A plugin whose PreScore said Skip has no entry.
	Scores map[string]map[string]int64 `json:"scores,omitzero"`
	// Preemption, on demand: only where no node is feasible.
	Preemption *Preemption `json:"preemption,omitempty"`
}

// question is one input line on its way to a worker, and the place for its answer.
type question struct {
	line   []byte
	answer chan []byte
}

func main() {
	jobs := flag.Int("j", runtime.NumCPU(), "cases processed at the same time")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	debug.SetGCPercent(400)
	metrics.Register() // the framework runtime writes to them

	if err := serve(os.Stdin, os.Stdout, max(1, *jobs)); err != nil {
		fmt.Fprintln(os.Stderr, "kube-oracle:", err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer, jobs int) error {
	questions := make(chan question)
	ordered := make(chan chan []byte, 4*jobs)
	written := make(chan error, 1)

	for range jobs {
		w, err := newWorker()
		if err != nil {
			return err
		}
		go func() {
			for q := range questions {
				q.answer <- w.answerLine(q.line)
			}
		}()
	}
	go func() {
		var failed error
		for answer := range ordered {
			line := <-answer
			if failed == nil {
				_, failed = out.Write(line)
			}
		}
		written <- failed
	}()

	reader := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			q := question{line: line, answer: make(chan []byte, 1)}
			ordered <- q.answer
			questions <- q
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	close(questions)
	close(ordered)
	return <-written
}

// answerLine never fails: whatever goes wrong with a case is its answer.
func (w *worker) answerLine(line []byte) []byte {
	var result any
	if answer, err := w.answerCase(line); err != nil {
		result = map[string]string{"error": err.Error()}
	} else {
		result = answer
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		encoded = []byte(`{"error":"answer cannot be encoded"}`)
	}
	return append(encoded, '\n')
}

func (w *worker) answerCase(line []byte) (answer *Answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			answer, err = nil, fmt.Errorf("panic: %v", r)
		}
	}()
	var c Case
	if err := kjson.UnmarshalCaseSensitivePreserveInts(line, &c); err != nil {
		return nil, fmt.Errorf("decoding the case: %w", err)
	}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	return w.answer(&c)
}
