// Package control is how a test speaks to the programs of this module: JSON over HTTP on a Unix socket.
package control

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
)

// Action does what one request asks for; what it returns is answered as JSON.
type Action[Wanted, Given any] func(*http.Request, Wanted) (Given, error)

// Nothing is what a request without a body asks with.
type Nothing struct{}

// Handle serves the pattern with an action; an error is answered as text.
func Handle[Wanted, Given any](mux *http.ServeMux, pattern string, act Action[Wanted, Given]) {
	mux.HandleFunc(pattern, func(writer http.ResponseWriter, request *http.Request) {
		var wanted Wanted
		if request.ContentLength != 0 {
			decoder := json.NewDecoder(request.Body)
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&wanted); err != nil {
				http.Error(writer, err.Error(), http.StatusBadRequest)
				return
			}
		}
		given, err := act(request, wanted)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		writer.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(writer).Encode(given)
	})
}

// Serve answers on the socket until the process ends.
func Serve(socket string, mux *http.ServeMux) error {
	listener, err := Listen(socket)
	if err != nil {
		return err
	}
	return http.Serve(listener, mux)
}

// Listen opens a Unix socket in place of what an earlier process left there.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socket)
}
