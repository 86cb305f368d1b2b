// cri-client is a client of a container runtime on one connection, like kubelet; tests control which calls it makes.
//
// It reports statuses, metadata, sizes, latencies and HTTP/2 frames.
package main

import (
	"flag"
	"log"
	"net/http"

	"testbed/internal/control"
	"testbed/internal/frames"
)

func main() {
	socket := flag.String("socket", "", "socket of the runtime")
	controlSocket := flag.String("control", "", "socket for the test's control requests")
	window := flag.Int("window-bytes", 0, "fixed size of all flow-control windows; by default they grow")
	flag.Parse()
	client, err := newClient(*socket, *window)
	if err == nil {
		err = control.Serve(*controlSocket, client.control())
	}
	log.Fatal(err)
}

func (client *Client) control() *http.ServeMux {
	mux := http.NewServeMux()
	control.Handle(mux, "POST /calls", func(_ *http.Request, request CallRequest) (Reply, error) {
		return client.call(request)
	})
	control.Handle(mux, "POST /streams", func(_ *http.Request, request StreamRequest) (StreamNumber, error) {
		return client.open(request)
	})
	control.Handle(mux, "GET /streams/{number}", func(request *http.Request, _ control.Empty) (Progress, error) {
		return client.progress(request.PathValue("number"))
	})
	control.Handle(mux, "DELETE /streams/{number}", func(request *http.Request, _ control.Empty) (Progress, error) {
		return client.end(request.PathValue("number"))
	})
	control.Handle(mux, "POST /repetitions", func(_ *http.Request, request RepetitionRequest) (Repetition, error) {
		return client.repeat(request)
	})
	control.Handle(mux, "POST /storms", func(_ *http.Request, request StormRequest) (Storm, error) {
		return client.storm(request)
	})
	control.Handle(mux, "GET /wire", func(*http.Request, control.Empty) (frames.Report, error) {
		return client.frames.Report(), nil
	})
	return mux
}
