// Package wire represents gRPC calls without a schema: messages as bytes, metadata and statuses as JSON.
package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// MaxMessageBytes is more than twice what kubelet and containerd accept, so that it never limits a test.
const MaxMessageBytes = 40 << 20

// Codec passes messages unchanged. It has no name, so that the content type is "application/grpc", as kubelet's.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Marshal encodes a *[]byte.
func (Codec) Marshal(message any) (mem.BufferSlice, error) {
	raw, ok := message.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot marshal %T, only *[]byte", message)
	}
	return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
}

// Unmarshal decodes into a *[]byte.
func (Codec) Unmarshal(data mem.BufferSlice, message any) error {
	raw, ok := message.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot unmarshal into %T, only *[]byte", message)
	}
	*raw = data.Materialize()
	return nil
}

// Name returns the content subtype, which is empty.
func (Codec) Name() string { return "" }
