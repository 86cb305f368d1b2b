// fake-runtime is a container runtime that runs nothing and answers immediately from its own state.
//
// It records exactly what a runtime receives, and serves to measure proxies in front of it. Other tests use a real one.
package main

import (
	"errors"
	"io"
	"log"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"testbed/internal/control"
	"testbed/internal/peer"
	"testbed/internal/schema"
)

// Every method of this service echoes each message.
const echoService = "/testbed.Echo/"

func main() {
	state := newState()
	log.Fatal(peer.Main(schema.CRI(), state.answer, state.control))
}

// Exit names a container that exits.
type Exit struct {
	ContainerID string `json:"container_id"`
}

func (state *State) control(mux *http.ServeMux) {
	control.Handle(mux, "POST /exits", func(_ *http.Request, exit Exit) (control.Empty, error) {
		return control.Empty{}, state.exit(exit.ContainerID)
	})
}

func (state *State) answer(call *peer.Call) error {
	switch {
	case strings.HasPrefix(call.Path, echoService):
		return echo(call)
	case call.Method() == "GetContainerEvents":
		return state.events.send(call)
	}
	handle, known := methods[call.Method()]
	if !known {
		return call.Unimplemented()
	}
	answer, err := handle(state, call)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	return call.Send(raw)
}

func echo(call *peer.Call) error {
	message := call.Request
	for {
		if err := call.Send(message); err != nil {
			return err
		}
		next, err := call.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		message = next
	}
}
