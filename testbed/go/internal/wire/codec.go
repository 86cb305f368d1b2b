// Package wire holds what gRPC calls look like when nobody decodes them: messages as bytes, metadata as JSON.
package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// LargestMessage is more than twice what kubelet and containerd accept, so that no limit of ours is ever in the way.
const LargestMessage = 40 << 20

// Codec passes messages as they are. It has no name, so requests say "application/grpc" as kubelet's do.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Marshal takes a *[]byte.
func (Codec) Marshal(message any) (mem.BufferSlice, error) {
	raw, ok := message.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("only bytes are sent, not %T", message)
	}
	return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
}

// Unmarshal fills a *[]byte.
func (Codec) Unmarshal(data mem.BufferSlice, message any) error {
	raw, ok := message.(*[]byte)
	if !ok {
		return fmt.Errorf("only bytes are received, not %T", message)
	}
	*raw = data.Materialize()
	return nil
}

// Name is the content subtype.
func (Codec) Name() string { return "" }
