package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // register the compressor
	"google.golang.org/grpc/metadata"

	"testbed/internal/frames"
	"testbed/internal/schema"
	"testbed/internal/wire"
)

// Client is a CRI client with one connection, which is dialled on demand and again whenever it is lost.
type Client struct {
	schema     *schema.Schema
	frames     *frames.Counter
	connection *grpc.ClientConn
	streams    streams
}

func newClient(socket string, window int) (*Client, error) {
	client := &Client{schema: schema.CRI(), frames: frames.NewCounter(), streams: streams{all: map[string]*stream{}}}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		plain, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		return client.frames.Connection(plain), nil
	}
	kubeletBackoff := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: kubeletBackoff, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(wire.Codec{}),
			grpc.MaxCallRecvMsgSize(wire.MaxMessageBytes),
			grpc.MaxCallSendMsgSize(wire.MaxMessageBytes),
		),
	}
	if window > 0 {
		size := int32(window)
		options = append(options, grpc.WithInitialWindowSize(size), grpc.WithInitialConnWindowSize(size))
	}
	connection, err := grpc.NewClient("unix:"+socket, options...)
	client.connection = connection
	return client, err
}

// CallRequest is a call to be made.
type CallRequest struct {
	// Method is the short name of a CRI method, or the path of any method.
	Method string `json:"method"`
	// Package is the CRI package of a short name.
	Package string `json:"package,omitempty"`
	// Request is the message as JSON; Raw is encoded bytes, appended to it.
	Request      json.RawMessage `json:"request,omitempty"`
	Raw          []byte          `json:"raw,omitempty"`
	Metadata     wire.Values     `json:"metadata,omitempty"`
	DeadlineS    float64         `json:"deadline_s,omitempty"`
	CancelAfterS float64         `json:"cancel_after_s,omitempty"`
	Compressor   string          `json:"compressor,omitempty"`
	WaitForReady bool            `json:"wait_for_ready,omitempty"`
}

// Reply is the result of a call.
type Reply struct {
	wire.Status
	Answer   json.RawMessage `json:"answer,omitempty"`
	Raw      []byte          `json:"raw,omitempty"`
	Size     int             `json:"size"`
	SHA256   string          `json:"sha256,omitempty"`
	Headers  wire.Values     `json:"headers"`
	Trailers wire.Values     `json:"trailers"`
	TookS    float64         `json:"took_s"`
}

const maxReportedBytes = 1 << 20

func (client *Client) call(request CallRequest) (Reply, error) {
	path, raw, err := client.prepare(request)
	if err != nil {
		return Reply{}, err
	}
	ctx, cancel, err := request.context()
	if err != nil {
		return Reply{}, err
	}
	defer cancel()
	var answer []byte
	var headers, trailers metadata.MD
	options := append(request.options(), grpc.Header(&headers), grpc.Trailer(&trailers))
	started := time.Now()
	err = client.connection.Invoke(ctx, path, &raw, &answer, options...)
	reply := Reply{
		Status: wire.StatusOf(err), Headers: wire.FromMetadata(headers), Trailers: wire.FromMetadata(trailers),
		TookS: time.Since(started).Seconds(),
	}
	if err == nil {
		reply.setAnswer(client, path, answer)
	}
	return reply, nil
}

func (reply *Reply) setAnswer(client *Client, path string, answer []byte) {
	digest := sha256.Sum256(answer)
	reply.Size, reply.SHA256 = len(answer), hex.EncodeToString(digest[:])
	if len(answer) > maxReportedBytes {
		return
	}
	reply.Raw = answer
	if method := client.schema.Find(path); method != nil {
		reply.Answer, _ = schema.Decode(method.Output(), answer) // undecodable answers are reported raw
	}
}

// prepare returns the path and the encoded message of a call.
func (client *Client) prepare(request CallRequest) (string, []byte, error) {
	path, err := client.schema.Path(request.Method, request.Package)
	if err != nil {
		return "", nil, err
	}
	method := client.schema.Find(path)
	if method == nil {
		return path, request.Raw, nil
	}
	encoded, err := schema.Encode(method.Input(), request.Request)
	return path, append(encoded, request.Raw...), err
}

func (request *CallRequest) context() (context.Context, context.CancelFunc, error) {
	values, err := request.Metadata.Metadata()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(context.Background(), values))
	if request.DeadlineS > 0 {
		ctx, cancel = context.WithTimeout(ctx, seconds(request.DeadlineS))
	}
	if request.CancelAfterS > 0 {
		time.AfterFunc(seconds(request.CancelAfterS), cancel)
	}
	return ctx, cancel, err
}

func (request *CallRequest) options() []grpc.CallOption {
	options := []grpc.CallOption{grpc.WaitForReady(request.WaitForReady)}
	if request.Compressor != "" {
		options = append(options, grpc.UseCompressor(request.Compressor))
	}
	return options
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
