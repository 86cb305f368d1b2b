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
	_ "google.golang.org/grpc/encoding/gzip" // so that a call may be compressed
	"google.golang.org/grpc/metadata"

	"testbed/internal/frames"
	"testbed/internal/schema"
	"testbed/internal/wire"
)

// Client has one connection, made when it is first needed and again whenever it was lost.
type Client struct {
	schema     *schema.Schema
	watch      *frames.Watch
	connection *grpc.ClientConn
	streams    streams
}

func newClient(socket string, window int) (*Client, error) {
	client := &Client{schema: schema.CRI(), watch: frames.NewWatch(), streams: streams{all: map[string]*stream{}}}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		plain, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		return client.watch.Connection(plain), nil
	}
	kubelets := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: kubelets, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(wire.Codec{}),
			grpc.MaxCallRecvMsgSize(wire.LargestMessage),
			grpc.MaxCallSendMsgSize(wire.LargestMessage),
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

// Wanted is one call to be made.
type Wanted struct {
	// Method is a short name of CRI, or the path of any method whatever.
	Method string `json:"method"`
	// Package is that of CRI, in which a short name is looked for.
	Package string `json:"package,omitempty"`
	// Request is the message as JSON; Raw is the message itself, or follows it.
	Request      json.RawMessage `json:"request,omitempty"`
	Raw          []byte          `json:"raw,omitempty"`
	Metadata     wire.Values     `json:"metadata,omitempty"`
	DeadlineS    float64         `json:"deadline_s,omitempty"`
	CancelAfterS float64         `json:"cancel_after_s,omitempty"`
	Compressor   string          `json:"compressor,omitempty"`
	WaitForReady bool            `json:"wait_for_ready,omitempty"`
}

// Reply is all that is known about a call that has ended.
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

const shownBytes = 1 << 20

func (client *Client) call(wanted Wanted) (Reply, error) {
	path, raw, err := client.prepare(wanted)
	if err != nil {
		return Reply{}, err
	}
	ctx, cancel, err := wanted.context()
	if err != nil {
		return Reply{}, err
	}
	defer cancel()
	var answer []byte
	var headers, trailers metadata.MD
	options := append(wanted.options(), grpc.Header(&headers), grpc.Trailer(&trailers))
	started := time.Now()
	err = client.connection.Invoke(ctx, path, &raw, &answer, options...)
	reply := Reply{
		Status: wire.StatusOf(err), Headers: wire.Read(headers), Trailers: wire.Read(trailers),
		TookS: time.Since(started).Seconds(),
	}
	if err == nil {
		reply.take(client, path, answer)
	}
	return reply, nil
}

func (reply *Reply) take(client *Client, path string, answer []byte) {
	digest := sha256.Sum256(answer)
	reply.Size, reply.SHA256 = len(answer), hex.EncodeToString(digest[:])
	if len(answer) > shownBytes {
		return
	}
	reply.Raw = answer
	if method := client.schema.Find(path); method != nil {
		reply.Answer, _ = schema.Decode(method.Output(), answer) // what cannot be decoded is shown raw
	}
}

// prepare gives the path and the message of a call.
func (client *Client) prepare(wanted Wanted) (string, []byte, error) {
	path, err := client.schema.Path(wanted.Method, wanted.Package)
	if err != nil {
		return "", nil, err
	}
	method := client.schema.Find(path)
	if method == nil {
		return path, wanted.Raw, nil
	}
	encoded, err := schema.Encode(method.Input(), wanted.Request)
	return path, append(encoded, wanted.Raw...), err
}

func (wanted *Wanted) context() (context.Context, context.CancelFunc, error) {
	values, err := wanted.Metadata.Metadata()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(context.Background(), values))
	if wanted.DeadlineS > 0 {
		ctx, cancel = context.WithTimeout(ctx, seconds(wanted.DeadlineS))
	}
	if wanted.CancelAfterS > 0 {
		time.AfterFunc(seconds(wanted.CancelAfterS), cancel)
	}
	return ctx, cancel, err
}

func (wanted *Wanted) options() []grpc.CallOption {
	options := []grpc.CallOption{grpc.WaitForReady(wanted.WaitForReady)}
	if wanted.Compressor != "" {
		options = append(options, grpc.UseCompressor(wanted.Compressor))
	}
	return options
}

func seconds(given float64) time.Duration { return time.Duration(given * float64(time.Second)) }
