package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/tools/cache"
)

// warmUpFraction is that of bench/kube/worker.py.
const warmUpFraction = 10

// Snapshot is the resources that the process has used so far.
type Snapshot struct {
	at       time.Time
	cpuS     float64
	resident int64
}

func snapshot() Snapshot {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // fails only for an unknown first argument
	var size, pages int64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		panic(err)
	}
	return Snapshot{time.Now(), seconds(used.Utime) + seconds(used.Stime), pages * int64(os.Getpagesize())}
}

// trimmed takes a snapshot after a garbage collection and after free memory has been returned to the system.
func trimmed() Snapshot {
	debug.FreeOSMemory()
	return snapshot()
}

func seconds(value syscall.Timeval) float64 { return float64(value.Nano()) / 1e9 }

// usage returns the resources used between two snapshots.
func (began Snapshot) usage(ended Snapshot, count int) Usage {
	return Usage{Count: count, Seconds: ended.at.Sub(began.at).Seconds(), CPUSeconds: ended.cpuS - began.cpuS}
}

// memory returns the resources used since. Both figures are after returning free memory, which is not more than a
// program keeps that leaves it to the runtime.
func (began Snapshot) memory(count int) Usage {
	now := trimmed()
	usage := began.usage(now, count)
	usage.ResidentBytes = now.resident - began.resident
	usage.TrimmedBytes = usage.ResidentBytes
	return usage
}

// deadline returns the end of a measurement that starts now; without a limit it is far away.
func (task *Task) deadline() time.Time {
	if task.LimitS == 0 {
		return time.Now().Add(24 * time.Hour)
	}
	return time.Now().Add(time.Duration(task.LimitS * float64(time.Second)))
}

func measureRequests(task *Task, call func(number int, text string) error) (Usage, error) {
	id := time.Now().UnixNano()
	request := func(number int) error { return call(number, fmt.Sprintf("%d %d", id, number)) }
	warmUp := max(task.Concurrency, task.Count/warmUpFraction)
	if _, err := runBounded(request, 0, warmUp, task.Concurrency, task.deadline()); err != nil {
		return Usage{}, err
	}
	began := snapshot()
	count, err := runBounded(request, warmUp, warmUp+task.Count, task.Concurrency, task.deadline())
	return began.usage(snapshot(), count), err
}

// runBounded calls with each number until the deadline, at most atOnce at a time, and returns how many it called with.
func runBounded(call func(int) error, first, end, atOnce int, deadline time.Time) (int, error) {
	var next, done atomic.Int64
	next.Store(int64(first))
	failures := make(chan error, atOnce)
	var group sync.WaitGroup
	for range atOnce {
		group.Go(func() {
			for time.Now().Before(deadline) {
				number := int(next.Add(1)) - 1
				if number >= end {
					return
				}
				if err := call(number); err != nil {
					failures <- err
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	close(failures)
	return int(done.Load()), <-failures
}

// measureWatch measures the events that reach the handler of a synced informer.
func measureWatch(ctx context.Context, client client, task *Task) (Usage, error) {
	warmUp := max(1, task.Count/warmUpFraction)
	result := make(chan Usage, 1)
	var began Snapshot
	var deadline time.Time
	seen := 0
	informer := client.informer(task.Namespace)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) {
		seen++
		switch {
		case seen == warmUp:
			began, deadline = snapshot(), task.deadline()
		case seen == warmUp+task.Count, seen > warmUp && time.Now().After(deadline):
			select {
			case result <- began.usage(snapshot(), seen-warmUp):
			default: // the result is already there
			}
		}
	}})
	if err != nil {
		return Usage{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go informer.RunWithContext(ctx)
	return <-result, nil
}

// measureCache measures the store of a synced informer, which is stopped.
func measureCache(ctx context.Context, client client, task *Task) (Usage, error) {
	if _, err := synced(ctx, client, task.WarmUp); err != nil {
		return Usage{}, err
	}
	began := trimmed()
	store, err := synced(ctx, client, task.Namespace)
	if err != nil {
		return Usage{}, err
	}
	usage := began.memory(task.Count)
	if held := len(store.ListKeys()); held != task.Count {
		return Usage{}, fmt.Errorf("the store holds %d objects, expected %d", held, task.Count)
	}
	return usage, nil
}

// synced returns the store of an informer once it is synced, and stops the informer.
func synced(ctx context.Context, client client, namespace string) (cache.Store, error) {
	ctx, cancel := context.WithCancel(ctx)
	informer := client.informer(namespace)
	var group sync.WaitGroup
	group.Go(func() { informer.RunWithContext(ctx) })
	ok := cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	cancel()
	group.Wait()
	if !ok {
		return nil, fmt.Errorf("the informer of %s is not synced", namespace)
	}
	return informer.GetStore(), nil
}

// measureIdleClients measures clients that sent one request and whose connection the server has closed.
func measureIdleClients(ctx context.Context, variant string, first client, task *Task) (Usage, error) {
	if err := first.get(ctx, task.name(0)); err != nil {
		return Usage{}, err
	}
	others := task.Kubeconfigs[1:]
	clients := make([]client, len(others))
	began, sockets := trimmed(), openSockets()
	use := func(number int) error {
		opened, err := open(variant, task, others[number])
		if err != nil {
			return err
		}
		clients[number] = opened
		return opened.get(ctx, task.name(number))
	}
	count, err := runBounded(use, 0, len(others), task.Concurrency, task.deadline())
	if err != nil {
		return Usage{}, err
	}
	time.Sleep(time.Duration(task.SettleS * float64(time.Second)))
	usage := began.memory(count)
	usage.OpenSockets = max(0, openSockets()-sockets)
	if clients[len(clients)-1] == nil {
		return Usage{}, fmt.Errorf("only %d of %d clients were opened", count, len(clients))
	}
	return usage, nil
}

// openSockets returns the number of open sockets of this process.
func openSockets() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	count := 0
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}
