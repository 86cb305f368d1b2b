// Package peer is a gRPC server that takes every call there is, keeps what it was sent, and answers as it is told.
//
// What it answers when it is not told anything is the business of the program.
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
	_ "google.golang.org/grpc/encoding/gzip" // what is compressed is understood
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"testbed/internal/control"
	"testbed/internal/schema"
	"testbed/internal/wire"
)

// Program answers a call by sending messages.
type Program func(*Call) error

// Call is one call that was received.
type Call struct {
	Path    string
	Request []byte
	method  protoreflect.MethodDescriptor
	rule    *Rule
	record  *record
	records *records
	stream  grpc.ServerStream
}

// Method is the last part of the path, such as RunPodSandbox; empty if no such method is known.
func (call *Call) Method() string {
	if call.method == nil {
		return ""
	}
	return string(call.method.Name())
}

// Unimplemented is how servers answer what they do not know.
func (call *Call) Unimplemented() error {
	return status.Errorf(codes.Unimplemented, "unknown method %s", call.Path)
}

// Context ends with the call.
func (call *Call) Context() context.Context { return call.stream.Context() }

// GivenUp is how a call ends whose caller does not wait any longer.
func (call *Call) GivenUp() error { return status.FromContextError(call.Context().Err()).Err() }

// Send sends one message, as large as the rule wants it.
func (call *Call) Send(raw []byte) error {
	if call.rule.AnswerBytes > 0 {
		whole, err := filled(raw, call.rule.AnswerBytes)
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

// Receive waits for a further message of the caller.
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
		return call.GivenUp()
	}
}

const (
	unknownField protowire.Number = 15000
	lengthBytes                   = 5
)

// filled appends a field that nobody knows, so that the whole has just that size.
func filled(raw []byte, size int) ([]byte, error) {
	field := protowire.AppendTag(nil, unknownField, protowire.BytesType)
	length := size - len(raw) - len(field) - lengthBytes
	if length < 0 {
		return nil, status.Errorf(codes.Internal, "an answer of %d bytes cannot be filled up to %d", len(raw), size)
	}
	whole := append(append(make([]byte, 0, size), raw...), field...)
	for shift := range lengthBytes { // as a varint that is longer than it need be, for then every size is possible
		digit := byte(length>>(7*shift)) & 0x7f
		if shift < lengthBytes-1 {
			digit |= 0x80
		}
		whole = append(whole, digit)
	}
	return append(whole, pattern()[:length]...), nil
}

// pattern is a text in which no part is mistaken for another.
var pattern = sync.OnceValue(func() []byte {
	text := make([]byte, wire.LargestMessage)
	state := uint32(1)
	for i := range text {
		state = state*1664525 + 1013904223
		text[i] = 'a' + byte(state>>24)%26
	}
	return text
})

// Main reads the command line and serves until the process ends. More is what the program lets tests ask beside.
func Main(known *schema.Schema, program Program, more func(*http.ServeMux)) error {
	socket := flag.String("socket", "", "where to serve gRPC")
	controlSocket := flag.String("control", "", "where tests ask")
	window := flag.Int("window-bytes", 0, "fixed size of all flow-control windows; without, they grow")
	settings := flag.String("settings", "", "file with rules as JSON")
	flag.Parse()
	server := &server{schema: known, program: program}
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
	program Program
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
		grpc.MaxRecvMsgSize(wire.LargestMessage),
		grpc.MaxSendMsgSize(wire.LargestMessage),
	}
	if window > 0 {
		options = append(options, grpc.InitialWindowSize(int32(window)), grpc.InitialConnWindowSize(int32(window)))
	}
	return grpc.NewServer(options...)
}

func (server *server) control(more func(*http.ServeMux)) *http.ServeMux {
	mux := http.NewServeMux()
	control.Handle(mux, "PUT /settings", func(_ *http.Request, settings Settings) (control.Nothing, error) {
		server.rules.set(settings)
		return control.Nothing{}, nil
	})
	control.Handle(mux, "GET /records", func(request *http.Request, _ control.Nothing) ([]Shown, error) {
		return server.records.shown(request.URL.Query().Get("method")), nil
	})
	control.Handle(mux, "DELETE /records", func(*http.Request, control.Nothing) (control.Nothing, error) {
		server.records.forget()
		return control.Nothing{}, nil
	})
	control.Handle(mux, "GET /counts", func(*http.Request, control.Nothing) (Counts, error) {
		return server.records.counted(), nil
	})
	more(mux)
	return mux
}

func (server *server) handle(_ any, stream grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(stream)
	call := &Call{Path: path, method: server.schema.Find(path), records: &server.records, stream: stream}
	received, _ := metadata.FromIncomingContext(stream.Context())
	call.record = &record{path: path, method: call.method, metadata: wire.Read(received)}
	if deadline, has := stream.Context().Deadline(); has {
		call.record.deadlineS = time.Until(deadline).Seconds()
	}
	err := stream.RecvMsg(&call.Request)
	call.record.raw = call.Request
	server.records.add(call.record)
	if err == nil {
		call.rule = server.rules.take(call)
		err = call.rule.perform(call, server.program)
	}
	server.records.end(call.record, err)
	return err
}
