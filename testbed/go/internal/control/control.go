// Package control serves control requests of tests: JSON over HTTP on a Unix socket.
package control

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
)

// Action handles one request; its result is the response, as JSON.
type Action[Request, Response any] func(*http.Request, Request) (Response, error)

// Empty is an empty request or response.
type Empty struct{}

// Handle serves the pattern with an action; errors are returned as text.
func Handle[Request, Response any](mux *http.ServeMux, pattern string, action Action[Request, Response]) {
	mux.HandleFunc(pattern, func(writer http.ResponseWriter, request *http.Request) {
		var body Request
		if request.ContentLength != 0 {
			decoder := json.NewDecoder(request.Body)
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&body); err != nil {
				http.Error(writer, err.Error(), http.StatusBadRequest)
				return
			}
		}
		response, err := action(request, body)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		writer.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(writer).Encode(response)
	})
}

// Serve serves on the socket until the process ends.
func Serve(socket string, mux *http.ServeMux) error {
	listener, err := Listen(socket)
	if err != nil {
		return err
	}
	return http.Serve(listener, mux)
}

// Listen opens a Unix socket, replacing one left by an earlier process.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socket)
}
