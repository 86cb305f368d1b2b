// cri-client is a caller of a container runtime on one connection, as kubelet is; a test tells it what to call.
//
// It reports everything that it sees: statuses, metadata, sizes, times, and what passed on the wire.
package main

import (
	"flag"
	"log"
	"net/http"

	"testbed/internal/control"
	"testbed/internal/frames"
)

func main() {
	socket := flag.String("socket", "", "where the runtime serves")
	controlSocket := flag.String("control", "", "where tests ask")
	window := flag.Int("window-bytes", 0, "fixed size of all flow-control windows; without, they grow")
	flag.Parse()
	client, err := newClient(*socket, *window)
	if err == nil {
		err = control.Serve(*controlSocket, client.control())
	}
	log.Fatal(err)
}

func (client *Client) control() *http.ServeMux {
	mux := http.NewServeMux()
	control.Handle(mux, "POST /calls", func(_ *http.Request, wanted Wanted) (Reply, error) {
		return client.call(wanted)
	})
	control.Handle(mux, "POST /streams", func(_ *http.Request, wanted WantedStream) (Opened, error) {
		return client.open(wanted)
	})
	control.Handle(mux, "GET /streams/{number}", func(request *http.Request, _ control.Nothing) (Progress, error) {
		return client.progress(request.PathValue("number"))
	})
	control.Handle(mux, "DELETE /streams/{number}", func(request *http.Request, _ control.Nothing) (Progress, error) {
		return client.end(request.PathValue("number"))
	})
	control.Handle(mux, "POST /repetitions", func(_ *http.Request, wanted WantedRepetition) (Repetition, error) {
		return client.repeat(wanted)
	})
	control.Handle(mux, "POST /storms", func(_ *http.Request, wanted WantedStorm) (Storm, error) {
		return client.storm(wanted)
	})
	control.Handle(mux, "GET /wire", func(*http.Request, control.Nothing) (frames.Report, error) {
		return client.watch.Report(), nil
	})
	return mux
}
