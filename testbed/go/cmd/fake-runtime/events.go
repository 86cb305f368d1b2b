package main

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"testbed/internal/peer"
)

const unreadEvents = 4096

// Events go to everybody who listens when they happen. Who does not keep up loses some, as with a real runtime.
type Events struct {
	mutex     sync.Mutex
	listeners map[chan []byte]bool
}

func (events *Events) tell(id string, kind runtime.ContainerEventType) {
	raw, _ := proto.Marshal(&runtime.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
	})
	events.mutex.Lock()
	defer events.mutex.Unlock()
	for listener := range events.listeners {
		select {
		case listener <- raw:
		default:
		}
	}
}

func (events *Events) send(call *peer.Call) error {
	listener := make(chan []byte, unreadEvents)
	events.mutex.Lock()
	events.listeners[listener] = true
	events.mutex.Unlock()
	defer func() {
		events.mutex.Lock()
		defer events.mutex.Unlock()
		delete(events.listeners, listener)
	}()
	for {
		select {
		case raw := <-listener:
			if err := call.Send(raw); err != nil {
				return err
			}
		case <-call.Context().Done():
			return call.GivenUp()
		}
	}
}
