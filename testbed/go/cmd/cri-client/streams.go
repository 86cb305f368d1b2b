package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"testbed/internal/schema"
	"testbed/internal/wire"
)

var anyStream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// StreamRequest is a streaming call; More are its messages after the first one.
type StreamRequest struct {
	CallRequest
	More [][]byte `json:"more,omitempty"`
}

// StreamNumber identifies a stream.
type StreamNumber struct {
	Number int `json:"number"`
}

// Progress is what a stream has received so far.
type Progress struct {
	// Status is nil while the stream is open.
	Status   *wire.Status      `json:"status"`
	Count    int               `json:"count"`
	Size     int               `json:"size"`
	Answers  []json.RawMessage `json:"answers,omitempty"`
	Raw      [][]byte          `json:"raw,omitempty"`
	Headers  wire.Values       `json:"headers,omitempty"`
	Trailers wire.Values       `json:"trailers,omitempty"`
}

type streams struct {
	mutex sync.Mutex
	all   map[string]*stream
}

type stream struct {
	mutex    sync.Mutex
	method   protoreflect.MethodDescriptor
	cancel   context.CancelFunc
	progress Progress
	ended    chan struct{}
}

func (client *Client) open(request StreamRequest) (StreamNumber, error) {
	opened, err := client.start(request)
	if err != nil {
		return StreamNumber{}, err
	}
	client.streams.mutex.Lock()
	defer client.streams.mutex.Unlock()
	number := len(client.streams.all) + 1
	client.streams.all[strconv.Itoa(number)] = opened
	return StreamNumber{Number: number}, nil
}

func (client *Client) start(request StreamRequest) (*stream, error) {
	path, raw, err := client.prepare(request.CallRequest)
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := request.context()
	if err != nil {
		return nil, err
	}
	opened := &stream{method: client.schema.Find(path), cancel: cancel, ended: make(chan struct{})}
	calls, err := client.connection.NewStream(ctx, anyStream, path, request.options()...)
	if err != nil {
		opened.end(err)
		return opened, nil
	}
	go opened.send(calls, append([][]byte{raw}, request.More...))
	go opened.receive(calls)
	return opened, nil
}

func (opened *stream) send(calls grpc.ClientStream, messages [][]byte) {
	for _, each := range messages {
		if calls.SendMsg(&each) != nil {
			return // receive reports the error
		}
	}
	_ = calls.CloseSend()
}

func (opened *stream) receive(calls grpc.ClientStream) {
	for {
		var raw []byte
		if err := calls.RecvMsg(&raw); err != nil {
			headers, _ := calls.Header()
			opened.mutex.Lock()
			opened.progress.Headers, opened.progress.Trailers = wire.FromMetadata(headers), wire.FromMetadata(calls.Trailer())
			opened.mutex.Unlock()
			opened.end(err)
			return
		}
		opened.mutex.Lock()
		opened.progress.Count++
		opened.progress.Size += len(raw)
		if opened.progress.Size <= maxReportedBytes {
			opened.progress.Raw = append(opened.progress.Raw, raw)
		}
		opened.mutex.Unlock()
	}
}

func (opened *stream) end(err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	ended := wire.StatusOf(err)
	opened.mutex.Lock()
	opened.progress.Status = &ended
	opened.mutex.Unlock()
	opened.cancel()
	close(opened.ended)
}

// snapshot returns what was received, decoded if the method is known.
func (opened *stream) snapshot() Progress {
	opened.mutex.Lock()
	defer opened.mutex.Unlock()
	progress := opened.progress
	if opened.method != nil {
		progress.Answers = make([]json.RawMessage, len(progress.Raw))
		for i, raw := range progress.Raw {
			progress.Answers[i], _ = schema.Decode(opened.method.Output(), raw)
		}
	}
	return progress
}

func (client *Client) find(number string) (*stream, error) {
	client.streams.mutex.Lock()
	defer client.streams.mutex.Unlock()
	if found := client.streams.all[number]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no stream %s", number)
}

func (client *Client) progress(number string) (Progress, error) {
	found, err := client.find(number)
	if err != nil {
		return Progress{}, err
	}
	return found.snapshot(), nil
}

// end cancels a stream if it is open and returns its result.
func (client *Client) end(number string) (Progress, error) {
	found, err := client.find(number)
	if err != nil {
		return Progress{}, err
	}
	found.cancel()
	<-found.ended
	return found.snapshot(), nil
}
