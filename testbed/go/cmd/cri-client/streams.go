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

// WantedStream is a call with any number of answers, and of messages after the first one.
type WantedStream struct {
	Wanted
	More [][]byte `json:"more,omitempty"`
}

// Opened names a stream.
type Opened struct {
	Number int `json:"number"`
}

// Progress is what has come until now.
type Progress struct {
	// Status is empty while the stream lasts.
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

func (client *Client) open(wanted WantedStream) (Opened, error) {
	opened, err := client.start(wanted)
	if err != nil {
		return Opened{}, err
	}
	client.streams.mutex.Lock()
	defer client.streams.mutex.Unlock()
	number := len(client.streams.all) + 1
	client.streams.all[strconv.Itoa(number)] = opened
	return Opened{Number: number}, nil
}

func (client *Client) start(wanted WantedStream) (*stream, error) {
	path, raw, err := client.prepare(wanted.Wanted)
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := wanted.context()
	if err != nil {
		return nil, err
	}
	opened := &stream{method: client.schema.Find(path), cancel: cancel, ended: make(chan struct{})}
	calls, err := client.connection.NewStream(ctx, anyStream, path, wanted.options()...)
	if err != nil {
		opened.end(err)
		return opened, nil
	}
	go opened.send(calls, append([][]byte{raw}, wanted.More...))
	go opened.receive(calls)
	return opened, nil
}

func (opened *stream) send(calls grpc.ClientStream, messages [][]byte) {
	for _, each := range messages {
		if calls.SendMsg(&each) != nil {
			return // why is what the receiver hears
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
			opened.progress.Headers, opened.progress.Trailers = wire.Read(headers), wire.Read(calls.Trailer())
			opened.mutex.Unlock()
			opened.end(err)
			return
		}
		opened.mutex.Lock()
		opened.progress.Count++
		opened.progress.Size += len(raw)
		if opened.progress.Size <= shownBytes {
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

// seen is what has come, decoded if that is known.
func (opened *stream) seen() Progress {
	opened.mutex.Lock()
	defer opened.mutex.Unlock()
	seen := opened.progress
	if opened.method != nil {
		seen.Answers = make([]json.RawMessage, len(seen.Raw))
		for i, raw := range seen.Raw {
			seen.Answers[i], _ = schema.Decode(opened.method.Output(), raw)
		}
	}
	return seen
}

func (client *Client) find(number string) (*stream, error) {
	client.streams.mutex.Lock()
	defer client.streams.mutex.Unlock()
	if found := client.streams.all[number]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("there is no stream %s", number)
}

func (client *Client) progress(number string) (Progress, error) {
	found, err := client.find(number)
	if err != nil {
		return Progress{}, err
	}
	return found.seen(), nil
}

// end cancels a stream, if it has not ended, and tells all about it.
func (client *Client) end(number string) (Progress, error) {
	found, err := client.find(number)
	if err != nil {
		return Progress{}, err
	}
	found.cancel()
	<-found.ended
	return found.seen(), nil
}
