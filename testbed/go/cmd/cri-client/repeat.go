package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"testbed/internal/wire"
)

// WantedRepetition is a call to be made many times, so many at once. In its request {n} is the number of the call.
type WantedRepetition struct {
	Wanted
	Count  int `json:"count"`
	AtOnce int `json:"at_once"`
}

// Repetition is how long the calls took.
type Repetition struct {
	Statuses map[string]int `json:"statuses"`
	TookS    float64        `json:"took_s"`
	MeanS    float64        `json:"mean_s"`
	MinS     float64        `json:"min_s"`
	P50S     float64        `json:"p50_s"`
	P90S     float64        `json:"p90_s"`
	P99S     float64        `json:"p99_s"`
	MaxS     float64        `json:"max_s"`
}

func (client *Client) repeat(wanted WantedRepetition) (Repetition, error) {
	path, requests, err := client.numbered(wanted)
	if err != nil {
		return Repetition{}, err
	}
	tookS := make([]float64, wanted.Count)
	statuses := make([]string, wanted.Count)
	started := time.Now()
	atOnce(wanted.AtOnce, wanted.Count, func(i int) {
		ctx, cancel, _ := wanted.context() // that its metadata is right was seen when the requests were prepared
		defer cancel()
		var answer []byte
		begun := time.Now()
		err := client.connection.Invoke(ctx, path, &requests[i], &answer, wanted.options()...)
		tookS[i], statuses[i] = time.Since(begun).Seconds(), wire.StatusOf(err).Code
	})
	return summarise(tookS, statuses, time.Since(started)), nil
}

// numbered encodes all requests, before any time is taken.
func (client *Client) numbered(wanted WantedRepetition) (string, [][]byte, error) {
	if wanted.Count < 1 || wanted.AtOnce < 1 {
		return "", nil, fmt.Errorf("at least one call is made, not %d, %d at once", wanted.Count, wanted.AtOnce)
	}
	if _, err := wanted.Metadata.Metadata(); err != nil {
		return "", nil, err
	}
	path, first, err := client.prepare(wanted.Wanted)
	requests := make([][]byte, wanted.Count)
	text := string(wanted.Request)
	for i := range requests {
		requests[i] = first
		if strings.Contains(text, "{n}") && err == nil {
			wanted.Request = []byte(strings.ReplaceAll(text, "{n}", fmt.Sprint(i)))
			_, requests[i], err = client.prepare(wanted.Wanted)
		}
	}
	return path, requests, err
}

// atOnce does something for each number, so many of them at a time.
func atOnce(workers, count int, act func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				act(i)
			}
		})
	}
	all.Wait()
}

func summarise(tookS []float64, statuses []string, whole time.Duration) Repetition {
	sort.Float64s(tookS)
	at := func(share float64) float64 { return tookS[int(share*float64(len(tookS)-1))] }
	sum := 0.0
	for _, each := range tookS {
		sum += each
	}
	return Repetition{
		Statuses: count(statuses), TookS: whole.Seconds(), MeanS: sum / float64(len(tookS)),
		MinS: at(0), P50S: at(0.5), P90S: at(0.9), P99S: at(0.99), MaxS: at(1),
	}
}

func count(names []string) map[string]int {
	counted := map[string]int{}
	for _, each := range names {
		counted[each]++
	}
	return counted
}
