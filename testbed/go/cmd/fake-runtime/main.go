// fake-runtime is a container runtime that runs nothing: it answers at once, from memory.
//
// It is there to see exactly what a runtime is sent, and to measure what stands before it. That a real runtime
// understands the same is tested with a real one.
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

// Any method of this service sends back every message as it comes.
const echoService = "/testbed.Echo/"

func main() {
	memory := newMemory()
	log.Fatal(peer.Main(schema.CRI(), memory.answer, memory.control))
}

// Exit names a container that shall end by itself.
type Exit struct {
	ContainerID string `json:"container_id"`
}

func (memory *Memory) control(mux *http.ServeMux) {
	control.Handle(mux, "POST /exits", func(_ *http.Request, exit Exit) (control.Nothing, error) {
		return control.Nothing{}, memory.exit(exit.ContainerID)
	})
}

func (memory *Memory) answer(call *peer.Call) error {
	switch {
	case strings.HasPrefix(call.Path, echoService):
		return echo(call)
	case call.Method() == "GetContainerEvents":
		return memory.events.send(call)
	}
	act, known := methods[call.Method()]
	if !known {
		return call.Unimplemented()
	}
	answer, err := act(memory, call)
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
