package main

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"testbed/internal/peer"
)

const maxUnreadEvents = 4096

// Events publishes container events to all subscribers. A slow subscriber loses events, as with a real runtime.
type Events struct {
	mutex       sync.Mutex
	subscribers map[chan []byte]bool
}

func (events *Events) publish(id string, kind runtime.ContainerEventType) {
	raw, _ := proto.Marshal(&runtime.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
	})
	events.mutex.Lock()
	defer events.mutex.Unlock()
	for subscriber := range events.subscribers {
		select {
		case subscriber <- raw:
		default:
		}
	}
}

func (events *Events) send(call *peer.Call) error {
	subscriber := make(chan []byte, maxUnreadEvents)
	events.mutex.Lock()
	events.subscribers[subscriber] = true
	events.mutex.Unlock()
	defer func() {
		events.mutex.Lock()
		defer events.mutex.Unlock()
		delete(events.subscribers, subscriber)
	}()
	for {
		select {
		case raw := <-subscriber:
			if err := call.Send(raw); err != nil {
				return err
			}
		case <-call.Context().Done():
			return call.ContextError()
		}
	}
}
