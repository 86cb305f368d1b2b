// Package frames counts the HTTP/2 frames on a connection and records errors.
package frames

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"sync"

	"golang.org/x/net/http2"
)

const (
	headerLength  = 9
	maxErrors     = 100
	initialWindow = 65_535
)

// Counter counts the frames of all connections of a program.
type Counter struct {
	mutex  sync.Mutex
	report Report
}

// NewCounter returns an empty Counter.
func NewCounter() *Counter {
	return &Counter{report: Report{Sent: map[string]int{}, Received: map[string]int{}, Endings: map[string]int{}}}
}

// Report is the JSON form of a Counter.
type Report struct {
	Connections int            `json:"connections"`
	Sent        map[string]int `json:"sent"`
	Received    map[string]int `json:"received"`
	// SendWindow and ReceiveWindow are the sums of all connection windows, not counting stream windows.
	SendWindow    int `json:"send_window"`
	ReceiveWindow int `json:"receive_window"`
	// Endings counts RST_STREAM and GOAWAY by direction and code.
	Endings map[string]int `json:"endings"`
	// Errors are endings with a code other than NO_ERROR, CANCEL and REFUSED_STREAM.
	Errors []string `json:"errors"`
}

// Report returns a copy of the counts so far.
func (counter *Counter) Report() Report {
	counter.mutex.Lock()
	defer counter.mutex.Unlock()
	copied := counter.report
	copied.Sent, copied.Received = maps.Clone(copied.Sent), maps.Clone(copied.Received)
	copied.Endings, copied.Errors = maps.Clone(copied.Endings), append([]string{}, copied.Errors...)
	return copied
}

// Connection wraps a connection and counts its frames.
func (counter *Counter) Connection(plain net.Conn) net.Conn {
	counter.mutex.Lock()
	defer counter.mutex.Unlock()
	report := &counter.report
	report.Connections++
	report.SendWindow += initialWindow
	report.ReceiveWindow += initialWindow
	sent := &direction{
		name: "sent", counts: report.Sent, counter: counter, skip: len(http2.ClientPreface),
		used: &report.SendWindow, opened: &report.ReceiveWindow,
	}
	received := &direction{
		name: "received", counts: report.Received, counter: counter,
		used: &report.ReceiveWindow, opened: &report.SendWindow,
	}
	return &connection{Conn: plain, sent: sent, received: received}
}

type connection struct {
	net.Conn
	sent, received *direction
}

func (counted *connection) Write(data []byte) (int, error) {
	count, err := counted.Conn.Write(data)
	counted.sent.parse(data[:count])
	return count, err
}

func (counted *connection) Read(data []byte) (int, error) {
	count, err := counted.Conn.Read(data)
	counted.received.parse(data[:count])
	return count, err
}

// direction parses the frames of one direction.
type direction struct {
	name    string
	counts  map[string]int
	counter *Counter
	// used is the window that DATA of this direction consumes, opened the one that its WINDOW_UPDATE extends.
	used, opened *int
	skip         int
	// partial is a frame header, and for some types the payload, as far as received.
	partial []byte
}

func (one *direction) parse(data []byte) {
	for len(data) > 0 {
		if one.skip > 0 {
			step := min(one.skip, len(data))
			one.skip, data = one.skip-step, data[step:]
			continue
		}
		step := min(one.needed()-len(one.partial), len(data))
		one.partial, data = append(one.partial, data[:step]...), data[step:]
		if len(one.partial) == one.needed() {
			one.skip = int(length(one.partial)) - (len(one.partial) - headerLength)
			one.count()
			one.partial = one.partial[:0]
		}
	}
}

// needed returns how many bytes of the frame must be buffered.
func (one *direction) needed() int {
	if len(one.partial) < headerLength {
		return headerLength
	}
	switch http2.FrameType(one.partial[3]) {
	case http2.FrameRSTStream, http2.FrameGoAway, http2.FrameWindowUpdate:
		return headerLength + int(length(one.partial))
	default:
		return headerLength
	}
}

func length(header []byte) uint32 { return binary.BigEndian.Uint32(header) >> 8 }

func (one *direction) count() {
	one.counter.mutex.Lock()
	defer one.counter.mutex.Unlock()
	kind := http2.FrameType(one.partial[3])
	one.counts[kind.String()]++
	payload := one.partial[headerLength:]
	switch {
	case kind == http2.FrameData:
		*one.used -= int(length(one.partial))
	case kind == http2.FrameWindowUpdate && len(payload) >= 4 && binary.BigEndian.Uint32(one.partial[5:]) == 0:
		*one.opened += int(binary.BigEndian.Uint32(payload))
	case kind == http2.FrameRSTStream && len(payload) >= 4:
		one.countEnding(kind, payload, "")
	case kind == http2.FrameGoAway && len(payload) >= 8:
		one.countEnding(kind, payload[4:], string(payload[8:]))
	}
}

func (one *direction) countEnding(kind http2.FrameType, payload []byte, text string) {
	code := http2.ErrCode(binary.BigEndian.Uint32(payload))
	what := fmt.Sprintf("%s %s %s", one.name, kind, code)
	report := &one.counter.report
	report.Endings[what]++
	switch code {
	case http2.ErrCodeNo, http2.ErrCodeCancel, http2.ErrCodeRefusedStream:
	default:
		if len(report.Errors) < maxErrors {
			stream := binary.BigEndian.Uint32(one.partial[5:])
			report.Errors = append(report.Errors, fmt.Sprintf("%s on stream %d %s", what, stream, text))
		}
	}
}
