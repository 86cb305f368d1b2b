// hook-plugin is a hook plugin controlled by tests; without a rule it responds that nothing changes.
package main

import (
	"log"
	"net/http"

	"testbed/internal/peer"
	"testbed/internal/schema"
)

func main() {
	hooks, err := schema.Hooks()
	if err == nil {
		err = peer.Main(hooks, changeNothing, func(*http.ServeMux) {})
	}
	log.Fatal(err)
}

func changeNothing(call *peer.Call) error {
	if call.Method() == "" {
		return call.Unimplemented()
	}
	return call.Send(nil)
}
