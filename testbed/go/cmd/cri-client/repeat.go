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

// RepetitionRequest is a call to be repeated concurrently. {n} in its request is replaced by the number of the call.
type RepetitionRequest struct {
	CallRequest
	Count  int `json:"count"`
	AtOnce int `json:"at_once"`
}

// Repetition is the statuses and latencies of the repeated calls.
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

func (client *Client) repeat(request RepetitionRequest) (Repetition, error) {
	path, requests, err := client.numbered(request)
	if err != nil {
		return Repetition{}, err
	}
	tookS := make([]float64, request.Count)
	statuses := make([]string, request.Count)
	started := time.Now()
	atOnce(request.AtOnce, request.Count, func(i int) {
		ctx, cancel, _ := request.context() // numbered has checked the metadata
		defer cancel()
		var answer []byte
		callStarted := time.Now()
		err := client.connection.Invoke(ctx, path, &requests[i], &answer, request.options()...)
		tookS[i], statuses[i] = time.Since(callStarted).Seconds(), wire.StatusOf(err).Code
	})
	return summarise(tookS, statuses, time.Since(started)), nil
}

// numbered encodes all requests in advance, so that encoding is not measured.
func (client *Client) numbered(request RepetitionRequest) (string, [][]byte, error) {
	if request.Count < 1 || request.AtOnce < 1 {
		return "", nil, fmt.Errorf("count and at_once must be at least 1, got %d and %d", request.Count, request.AtOnce)
	}
	if _, err := request.Metadata.Metadata(); err != nil {
		return "", nil, err
	}
	path, first, err := client.prepare(request.CallRequest)
	requests := make([][]byte, request.Count)
	text := string(request.Request)
	for i := range requests {
		requests[i] = first
		if strings.Contains(text, "{n}") && err == nil {
			request.Request = []byte(strings.ReplaceAll(text, "{n}", fmt.Sprint(i)))
			_, requests[i], err = client.prepare(request.CallRequest)
		}
	}
	return path, requests, err
}

// atOnce calls work for each number with the given concurrency.
func atOnce(workers, count int, work func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				work(i)
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
