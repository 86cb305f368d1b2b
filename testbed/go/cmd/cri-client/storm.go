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

// WantedStorm is everything at once on one connection: a stream of events, creates of several kinds, and long lists.
type WantedStorm struct {
	// Request creates a container; {name} in it is the kind and number, {padding} a text of the kind's length.
	Request   json.RawMessage `json:"request"`
	Package   string          `json:"package,omitempty"`
	Kinds     []Kind          `json:"kinds"`
	Creates   int             `json:"creates"`
	AtOnce    int             `json:"at_once"`
	Lists     int             `json:"lists"`
	ListsOnce int             `json:"lists_at_once"`
	DeadlineS float64         `json:"deadline_s"`
}

// Kind is what some of the creates have in common. They take turns.
type Kind struct {
	Name         string  `json:"name"`
	PaddingBytes int     `json:"padding_bytes,omitempty"`
	CancelAfterS float64 `json:"cancel_after_s,omitempty"`
}

// Storm is what came of it.
type Storm struct {
	// Creates are the statuses by kind, Messages the different texts that came with them.
	Creates  map[string]map[string]int `json:"creates"`
	Messages map[string][]string       `json:"messages"`
	Lists    map[string]int            `json:"lists"`
	// ListSizes says how often a list had which size.
	ListSizes map[int]int `json:"list_sizes"`
	Events    int         `json:"events"`
	// EventsEnded is empty if the events came until nobody wanted them any more.
	EventsEnded *wire.Status  `json:"events_ended"`
	TookS       float64       `json:"took_s"`
	Wire        frames.Report `json:"wire"`
}

const shownMessages = 5

func (client *Client) storm(wanted WantedStorm) (Storm, error) {
	seen := &weather{storm: Storm{
		Creates: map[string]map[string]int{}, Messages: map[string][]string{},
		Lists: map[string]int{}, ListSizes: map[int]int{},
	}}
	if len(wanted.Kinds) == 0 {
		return Storm{}, fmt.Errorf("there must be a kind of creates")
	}
	if _, _, err := client.prepare(wanted.create(0)); err != nil {
		return Storm{}, err
	}
	started := time.Now()
	events, err := client.start(WantedStream{Wanted: Wanted{Method: "GetContainerEvents", Package: wanted.Package}})
	if err != nil {
		return Storm{}, err
	}
	client.rage(wanted, seen)
	lasting := events.seen()
	events.cancel()
	<-events.ended
	seen.storm.Events, seen.storm.EventsEnded = events.seen().Count, lasting.Status
	seen.storm.TookS, seen.storm.Wire = time.Since(started).Seconds(), client.watch.Report()
	return seen.storm, nil
}

// rage makes all creates while lists are read all the time, and at least as often as wanted.
func (client *Client) rage(wanted WantedStorm, seen *weather) {
	var listed atomic.Int64
	var created atomic.Bool
	var both sync.WaitGroup
	both.Go(func() {
		atOnce(wanted.AtOnce, wanted.Creates, func(i int) {
			reply, _ := client.call(wanted.create(i)) // that a request can be made was seen before
			seen.created(wanted.kind(i).Name, reply)
		})
		created.Store(true)
	})
	for range wanted.ListsOnce {
		both.Go(func() {
			for !created.Load() || listed.Load() < int64(wanted.Lists) {
				list := Wanted{Method: "ListContainers", Package: wanted.Package, DeadlineS: wanted.DeadlineS}
				reply, _ := client.call(list)
				seen.listed(reply)
				listed.Add(1)
			}
		})
	}
	both.Wait()
}

func (wanted *WantedStorm) kind(i int) Kind { return wanted.Kinds[i%len(wanted.Kinds)] }

func (wanted *WantedStorm) create(i int) Wanted {
	kind := wanted.kind(i)
	changes := strings.NewReplacer(
		"{name}", fmt.Sprintf("%s-%d", kind.Name, i),
		"{padding}", strings.Repeat("x", kind.PaddingBytes),
	)
	return Wanted{
		Method: "CreateContainer", Package: wanted.Package, Request: []byte(changes.Replace(string(wanted.Request))),
		DeadlineS: wanted.DeadlineS, CancelAfterS: kind.CancelAfterS,
	}
}

// weather is a storm while it lasts.
type weather struct {
	mutex sync.Mutex
	storm Storm
}

func (seen *weather) created(kind string, reply Reply) {
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
	if reply.Message != "" && len(texts) < shownMessages {
		seen.storm.Messages[kind] = append(texts, reply.Message)
	}
}

func (seen *weather) listed(reply Reply) {
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	seen.storm.Lists[reply.Code]++
	if reply.Code == "OK" {
		seen.storm.ListSizes[reply.Size]++
	}
}
