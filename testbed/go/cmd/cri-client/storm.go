package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"testbed/internal/frames"
	"testbed/internal/wire"
)

// StormRequest is a load test on one connection: an event stream, creates of several kinds, and long lists, all at once.
type StormRequest struct {
	// Request creates a container; {name} is replaced by kind and number, {padding} by a text of the kind's length.
	Request   json.RawMessage `json:"request"`
	Package   string          `json:"package,omitempty"`
	Kinds     []Kind          `json:"kinds"`
	Creates   int             `json:"creates"`
	AtOnce    int             `json:"at_once"`
	Lists     int             `json:"lists"`
	ListsOnce int             `json:"lists_at_once"`
	DeadlineS float64         `json:"deadline_s"`
}

// Kind is a variant of the creates. Kinds alternate.
type Kind struct {
	Name         string  `json:"name"`
	PaddingBytes int     `json:"padding_bytes,omitempty"`
	CancelAfterS float64 `json:"cancel_after_s,omitempty"`
}

// Storm is the result of a StormRequest.
type Storm struct {
	// Creates counts statuses by kind; Messages are the distinct status messages.
	Creates  map[string]map[string]int `json:"creates"`
	Messages map[string][]string       `json:"messages"`
	Lists    map[string]int            `json:"lists"`
	// ListSizes counts lists by size.
	ListSizes map[int]int `json:"list_sizes"`
	Events    int         `json:"events"`
	// EventsEnded is nil if the event stream lasted until it was cancelled.
	EventsEnded *wire.Status  `json:"events_ended"`
	TookS       float64       `json:"took_s"`
	Wire        frames.Report `json:"wire"`
}

const maxMessages = 5

func (client *Client) storm(request StormRequest) (Storm, error) {
	seen := &collector{storm: Storm{
		Creates: map[string]map[string]int{}, Messages: map[string][]string{},
		Lists: map[string]int{}, ListSizes: map[int]int{},
	}}
	if len(request.Kinds) == 0 {
		return Storm{}, fmt.Errorf("kinds must not be empty")
	}
	if _, _, err := client.prepare(request.create(0)); err != nil {
		return Storm{}, err
	}
	started := time.Now()
	events, err := client.start(StreamRequest{CallRequest: CallRequest{Method: "GetContainerEvents", Package: request.Package}})
	if err != nil {
		return Storm{}, err
	}
	client.run(request, seen)
	beforeCancel := events.snapshot()
	events.cancel()
	<-events.ended
	seen.storm.Events, seen.storm.EventsEnded = events.snapshot().Count, beforeCancel.Status
	seen.storm.TookS, seen.storm.Wire = time.Since(started).Seconds(), client.frames.Report()
	return seen.storm, nil
}

// run makes all creates while listing continuously, at least as often as requested.
func (client *Client) run(request StormRequest, seen *collector) {
	var listed atomic.Int64
	var created atomic.Bool
	var both sync.WaitGroup
	both.Go(func() {
		atOnce(request.AtOnce, request.Creates, func(i int) {
			reply, _ := client.call(request.create(i)) // storm has checked the request
			seen.created(request.kind(i).Name, reply)
		})
		created.Store(true)
	})
	for range request.ListsOnce {
		both.Go(func() {
			for !created.Load() || listed.Load() < int64(request.Lists) {
				list := CallRequest{Method: "ListContainers", Package: request.Package, DeadlineS: request.DeadlineS}
				reply, _ := client.call(list)
				seen.listed(reply)
				listed.Add(1)
			}
		})
	}
	both.Wait()
}

func (request *StormRequest) kind(i int) Kind { return request.Kinds[i%len(request.Kinds)] }

func (request *StormRequest) create(i int) CallRequest {
	kind := request.kind(i)
	changes := strings.NewReplacer(
		"{name}", fmt.Sprintf("%s-%d", kind.Name, i),
		"{padding}", strings.Repeat("x", kind.PaddingBytes),
	)
	return CallRequest{
		Method: "CreateContainer", Package: request.Package, Request: []byte(changes.Replace(string(request.Request))),
		DeadlineS: request.DeadlineS, CancelAfterS: kind.CancelAfterS,
	}
}

// collector collects the results of a storm.
type collector struct {
	mutex sync.Mutex
	storm Storm
}

func (seen *collector) created(kind string, reply Reply) {
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	if seen.storm.Creates[kind] == nil {
		seen.storm.Creates[kind] = map[string]int{}
	}
	seen.storm.Creates[kind][reply.Code]++
	texts := seen.storm.Messages[kind]
	for _, text := range texts {
		if text == reply.Message {
			return
		}
	}
	if reply.Message != "" && len(texts) < maxMessages {
		seen.storm.Messages[kind] = append(texts, reply.Message)
	}
}

func (seen *collector) listed(reply Reply) {
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	seen.storm.Lists[reply.Code]++
	if reply.Code == "OK" {
		seen.storm.ListSizes[reply.Size]++
	}
}
