// The renderer: renders Helm charts for a parent process, with the engine of Helm itself.
//
// Standard input and output carry frames: four bytes of length, big-endian, then JSON. The renderer sends `ready`,
// then answers each `render` with `rendered` or `failed`; in between it may send `lookup`, which the parent answers. It
// renders one chart at a time, opens no connection, and exits at the end of its input.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

const (
	protocol   = 1
	frameBytes = 64 << 20
)

// Frame is any message of the protocol; `type` determines which fields are set.
type Frame struct {
	Type     string          `json:"type"`
	Protocol int             `json:"protocol,omitempty"`
	Helm     string          `json:"helm,omitempty"`
	Request  *Request        `json:"request,omitempty"`
	Lookup   *Lookup         `json:"lookup,omitempty"`
	Object   json.RawMessage `json:"object,omitempty"`
	Error    string          `json:"error,omitempty"`
	Rendered *Rendered       `json:"rendered,omitempty"`
	Kind     string          `json:"kind,omitempty"`
	Message  string          `json:"message,omitempty"`
}

// Channel sends and receives frames.
type Channel struct {
	in  io.Reader
	out io.Writer
}

func (c Channel) send(frame Frame) error {
	body, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	if len(body) > frameBytes {
		if frame.Type == "failed" {
			return errors.New("the message of a failure is too long")
		}
		return c.send(failed("exhausted", fmt.Sprintf("the result has %d bytes; %d are allowed", len(body), frameBytes)))
	}
	_, err = c.out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func (c Channel) receive() (Frame, error) {
	var frame Frame
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return frame, err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > frameBytes {
		return frame, fmt.Errorf("a frame has %d bytes; %d are allowed", length, frameBytes)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return frame, err
	}
	return frame, json.Unmarshal(body, &frame)
}

func failed(kind, message string) Frame {
	return Frame{Type: "failed", Kind: kind, Message: message}
}

// lookUp asks the parent for an object, or for a list if the name is empty.
func (c Channel) lookUp(wanted Lookup) (json.RawMessage, error) {
	if err := c.send(Frame{Type: "lookup", Lookup: &wanted}); err != nil {
		return nil, err
	}
	answer, err := c.receive()
	if err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Object, nil
}

func (c Channel) serve() error {
	if err := c.send(Frame{Type: "ready", Protocol: protocol, Helm: helmVersion()}); err != nil {
		return err
	}
	for {
		frame, err := c.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if frame.Type != "render" || frame.Request == nil {
			return fmt.Errorf("a frame of the type %q is not expected", frame.Type)
		}
		if err := c.send(render(*frame.Request, c.lookUp)); err != nil {
			return err
		}
	}
}

type noNetwork struct{}

func (noNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("charts are rendered without access to the network")
}

func main() {
	memoryMiB := flag.Int64("memory-mib", 512, "exit with code 3 if more memory is used")
	flag.Parse()
	log.SetOutput(io.Discard)           // Helm logs values
	http.DefaultTransport = noNetwork{} // a values.schema.json may refer to others
	go watchMemory(*memoryMiB << 20)
	if err := (Channel{os.Stdin, os.Stdout}).serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
