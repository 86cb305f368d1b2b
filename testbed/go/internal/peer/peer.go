// Package peer is a gRPC server that accepts every method, records requests, and responds as its rules say.
//
// Calls without a rule are answered by the program's handler.
package peer

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // accept compressed requests
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"testbed/internal/control"
	"testbed/internal/schema"
	"testbed/internal/wire"
)

// Handler handles a call by sending messages.
type Handler func(*Call) error

// Call is a received call.
type Call struct {
	Path    string
	Request []byte
	method  protoreflect.MethodDescriptor
	rule    *Rule
	record  *record
	records *records
	stream  grpc.ServerStream
}

// Method returns the last part of the path, such as RunPodSandbox, or "" if the method is unknown.
func (call *Call) Method() string {
	if call.method == nil {
		return ""
	}
	return string(call.method.Name())
}

// Unimplemented returns the error for an unknown method.
func (call *Call) Unimplemented() error {
	return status.Errorf(codes.Unimplemented, "unknown method %s", call.Path)
}

// Context is done when the call ends.
func (call *Call) Context() context.Context { return call.stream.Context() }

// ContextError returns the error of a call whose client cancelled it or whose deadline passed.
func (call *Call) ContextError() error { return status.FromContextError(call.Context().Err()).Err() }

// Send sends one message, padded to the size in the rule.
func (call *Call) Send(raw []byte) error {
	if call.rule.AnswerBytes > 0 {
		whole, err := padded(raw, call.rule.AnswerBytes)
		if err != nil {
			return err
		}
		raw = whole
	}
	if err := call.stream.SendMsg(&raw); err != nil {
		return err
	}
	call.records.answered(call.record)
	return nil
}

// Receive waits for the client's next message.
func (call *Call) Receive() ([]byte, error) {
	var raw []byte
	err := call.stream.RecvMsg(&raw)
	return raw, err
}

func (call *Call) wait(delayS float64) error {
	if delayS == 0 {
		return nil
	}
	select {
	case <-time.After(seconds(delayS)):
		return nil
	case <-call.Context().Done():
		return call.ContextError()
	}
}

const (
	unknownField protowire.Number = 15000
	lengthBytes                   = 5
)

// padded appends an unknown field, so that the message has exactly the given size.
func padded(raw []byte, size int) ([]byte, error) {
	field := protowire.AppendTag(nil, unknownField, protowire.BytesType)
	length := size - len(raw) - len(field) - lengthBytes
	if length < 0 {
		return nil, status.Errorf(codes.Internal, "a response of %d bytes cannot be padded to %d", len(raw), size)
	}
	whole := append(append(make([]byte, 0, size), raw...), field...)
	for shift := range lengthBytes { // a varint of fixed length makes every size possible
		digit := byte(length>>(7*shift)) & 0x7f
		if shift < lengthBytes-1 {
			digit |= 0x80
		}
		whole = append(whole, digit)
	}
	return append(whole, pattern()[:length]...), nil
}

// pattern is a pseudo-random text, so that misplaced parts are detected.
var pattern = sync.OnceValue(func() []byte {
	text := make([]byte, wire.MaxMessageBytes)
	state := uint32(1)
	for i := range text {
		state = state*1664525 + 1013904223
		text[i] = 'a' + byte(state>>24)%26
	}
	return text
})

// Main parses the command line and serves until the process ends. More adds the program's own control requests.
func Main(known *schema.Schema, handler Handler, more func(*http.ServeMux)) error {
	socket := flag.String("socket", "", "socket to serve gRPC on")
	controlSocket := flag.String("control", "", "socket for the test's control requests")
	window := flag.Int("window-bytes", 0, "fixed size of all flow-control windows; by default they grow")
	settings := flag.String("settings", "", "file with the initial rules as JSON")
	flag.Parse()
	server := &server{schema: known, handler: handler}
	if err := server.configure(*settings); err != nil {
		return err
	}
	listener, err := control.Listen(*socket)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- server.grpc(*window).Serve(listener) }()
	go func() { failed <- control.Serve(*controlSocket, server.control(more)) }()
	return <-failed
}

type server struct {
	schema  *schema.Schema
	handler Handler
	rules   rules
	records records
}

func (server *server) configure(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var settings Settings
	if err := json.Unmarshal(text, &settings); err != nil {
		return err
	}
	server.rules.set(settings)
	return nil
}

func (server *server) grpc(window int) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec{}),
		grpc.UnknownServiceHandler(server.handle),
		grpc.MaxRecvMsgSize(wire.MaxMessageBytes),
		grpc.MaxSendMsgSize(wire.MaxMessageBytes),
	}
	if window > 0 {
		options = append(options, grpc.InitialWindowSize(int32(window)), grpc.InitialConnWindowSize(int32(window)))
	}
	return grpc.NewServer(options...)
}

func (server *server) control(more func(*http.ServeMux)) *http.ServeMux {
	mux := http.NewServeMux()
	control.Handle(mux, "PUT /settings", func(_ *http.Request, settings Settings) (control.Empty, error) {
		server.rules.set(settings)
		return control.Empty{}, nil
	})
	control.Handle(mux, "GET /records", func(request *http.Request, _ control.Empty) ([]RecordView, error) {
		return server.records.views(request.URL.Query().Get("method")), nil
	})
	control.Handle(mux, "DELETE /records", func(*http.Request, control.Empty) (control.Empty, error) {
		server.records.clear()
		return control.Empty{}, nil
	})
	control.Handle(mux, "GET /counts", func(*http.Request, control.Empty) (Counts, error) {
		return server.records.copyCounts(), nil
	})
	more(mux)
	return mux
}

func (server *server) handle(_ any, stream grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(stream)
	call := &Call{Path: path, method: server.schema.Find(path), records: &server.records, stream: stream}
	received, _ := metadata.FromIncomingContext(stream.Context())
	call.record = &record{path: path, method: call.method, metadata: wire.FromMetadata(received)}
	if deadline, has := stream.Context().Deadline(); has {
		call.record.deadlineS = time.Until(deadline).Seconds()
	}
	err := stream.RecvMsg(&call.Request)
	call.record.raw = call.Request
	server.records.add(call.record)
	if err == nil {
		call.rule = server.rules.match(call)
		err = call.rule.apply(call, server.handler)
	}
	server.records.end(call.record, err)
	return err
}
