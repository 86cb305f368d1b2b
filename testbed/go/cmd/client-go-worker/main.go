// client-go-worker runs one task of `make bench-kube` with client-go and prints the resources used.
//
// client-go-worker VARIANT < TASK > USAGE, both JSON as in bench/kube/tasks.py. The variant is how client-go is used.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

// Task is one operation, count times or until the time limit, with at most Concurrency at a time.
type Task struct {
	Operation   string                             `json:"operation"`
	Kubeconfigs []string                           `json:"kubeconfigs"`
	Namespace   string                             `json:"namespace"`
	Count       int                                `json:"count"`
	Concurrency int                                `json:"concurrency"`
	LimitS      float64                            `json:"limit_s"`
	SettleS     float64                            `json:"settle_s"`
	WarmUp      string                             `json:"warm_up_namespace"`
	Names       []string                           `json:"names"`
	Manifest    corev1.ConfigMapApplyConfiguration `json:"manifest"`
	Manager     string                             `json:"manager"`
	IsReplayed  bool                               `json:"is_replayed"`
}

// Usage is the resources used by Count operations, without preparation and warm-up.
type Usage struct {
	Count         int     `json:"count"`
	Seconds       float64 `json:"seconds"`
	CPUSeconds    float64 `json:"cpu_seconds"`
	ResidentBytes int64   `json:"resident_bytes"`
	TrimmedBytes  int64   `json:"trimmed_bytes"`
	OpenSockets   int     `json:"open_sockets"`
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: client-go-worker VARIANT < TASK")
	}
	var task Task
	if err := json.NewDecoder(os.Stdin).Decode(&task); err != nil {
		log.Fatal(err)
	}
	usage, err := run(context.Background(), os.Args[1], &task)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(usage); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, variant string, task *Task) (Usage, error) {
	if task.IsReplayed {
		if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
			return Usage{}, err
		}
	}
	first, err := open(variant, task, task.Kubeconfigs[0])
	if err != nil {
		return Usage{}, err
	}
	switch task.Operation {
	case "apply":
		return measureRequests(task, func(number int, text string) error {
			return first.apply(ctx, task.name(number), text)
		})
	case "get":
		return measureRequests(task, func(number int, _ string) error {
			return first.get(ctx, task.name(number))
		})
	case "watch":
		return measureWatch(ctx, first, task)
	case "cache":
		return measureCache(ctx, first, task)
	case "connect":
		return measureIdleClients(ctx, variant, first, task)
	}
	return Usage{}, fmt.Errorf("unknown operation %q", task.Operation)
}

// name returns the ConfigMap of the given operation.
func (task *Task) name(number int) string { return task.Names[number%len(task.Names)] }
