// Package frames counts the HTTP/2 frames on a connection and keeps those that say that something went wrong.
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
	headerLength = 9
	keptErrors   = 100
	firstWindow  = 65_535
)

// Watch is what was seen on all connections of a program.
type Watch struct {
	mutex  sync.Mutex
	report Report
}

// NewWatch has seen nothing yet.
func NewWatch() *Watch {
	return &Watch{report: Report{Sent: map[string]int{}, Received: map[string]int{}, Endings: map[string]int{}}}
}

// Report is a Watch as JSON shows it.
type Report struct {
	Connections int            `json:"connections"`
	Sent        map[string]int `json:"sent"`
	Received    map[string]int `json:"received"`
	// SendWindow and ReceiveWindow are what may be sent and received now on all connections together, of streams apart.
	SendWindow    int `json:"send_window"`
	ReceiveWindow int `json:"receive_window"`
	// Endings counts RST_STREAM and GOAWAY by direction and code.
	Endings map[string]int `json:"endings"`
	// Errors are those of them that no well-behaved peer gives reason for.
	Errors []string `json:"errors"`
}

// Report is what was seen until now.
func (watch *Watch) Report() Report {
	watch.mutex.Lock()
	defer watch.mutex.Unlock()
	copied := watch.report
	copied.Sent, copied.Received = maps.Clone(copied.Sent), maps.Clone(copied.Received)
	copied.Endings, copied.Errors = maps.Clone(copied.Endings), append([]string{}, copied.Errors...)
	return copied
}

// Connection lets all bytes through and counts the frames in them.
func (watch *Watch) Connection(plain net.Conn) net.Conn {
	watch.mutex.Lock()
	defer watch.mutex.Unlock()
	report := &watch.report
	report.Connections++
	report.SendWindow += firstWindow
	report.ReceiveWindow += firstWindow
	sent := &direction{
		name: "sent", counts: report.Sent, watch: watch, skip: len(http2.ClientPreface),
		used: &report.SendWindow, opened: &report.ReceiveWindow,
	}
	received := &direction{
		name: "received", counts: report.Received, watch: watch,
		used: &report.ReceiveWindow, opened: &report.SendWindow,
	}
	return &connection{Conn: plain, sent: sent, received: received}
}

type connection struct {
	net.Conn
	sent, received *direction
}

func (watched *connection) Write(data []byte) (int, error) {
	count, err := watched.Conn.Write(data)
	watched.sent.see(data[:count])
	return count, err
}

func (watched *connection) Read(data []byte) (int, error) {
	count, err := watched.Conn.Read(data)
	watched.received.see(data[:count])
	return count, err
}

// direction finds frames in the bytes of one direction.
type direction struct {
	name   string
	counts map[string]int
	watch  *Watch
	// used is the window that DATA of this direction takes from, opened the one that its WINDOW_UPDATE adds to.
	used, opened *int
	skip         int
	// kept is a frame's header, and for some types the beginning of its payload, as far as seen.
	kept []byte
}

func (one *direction) see(data []byte) {
	for len(data) > 0 {
		if one.skip > 0 {
			step := min(one.skip, len(data))
			one.skip, data = one.skip-step, data[step:]
			continue
		}
		step := min(one.wanted()-len(one.kept), len(data))
		one.kept, data = append(one.kept, data[:step]...), data[step:]
		if len(one.kept) == one.wanted() {
			one.skip = int(length(one.kept)) - (len(one.kept) - headerLength)
			one.count()
			one.kept = one.kept[:0]
		}
	}
}

// wanted is how many bytes of the frame have to be known.
func (one *direction) wanted() int {
	if len(one.kept) < headerLength {
		return headerLength
	}
	switch http2.FrameType(one.kept[3]) {
	case http2.FrameRSTStream, http2.FrameGoAway, http2.FrameWindowUpdate:
		return headerLength + int(length(one.kept))
	default:
		return headerLength
	}
}

func length(header []byte) uint32 { return binary.BigEndian.Uint32(header) >> 8 }

func (one *direction) count() {
	one.watch.mutex.Lock()
	defer one.watch.mutex.Unlock()
	kind := http2.FrameType(one.kept[3])
	one.counts[kind.String()]++
	payload := one.kept[headerLength:]
	switch {
	case kind == http2.FrameData:
		*one.used -= int(length(one.kept))
	case kind == http2.FrameWindowUpdate && len(payload) >= 4 && binary.BigEndian.Uint32(one.kept[5:]) == 0:
		*one.opened += int(binary.BigEndian.Uint32(payload))
	case kind == http2.FrameRSTStream && len(payload) >= 4:
		one.ended(kind, payload, "")
	case kind == http2.FrameGoAway && len(payload) >= 8:
		one.ended(kind, payload[4:], string(payload[8:]))
	}
}

func (one *direction) ended(kind http2.FrameType, payload []byte, text string) {
	code := http2.ErrCode(binary.BigEndian.Uint32(payload))
	what := fmt.Sprintf("%s %s %s", one.name, kind, code)
	report := &one.watch.report
	report.Endings[what]++
	switch code {
	case http2.ErrCodeNo, http2.ErrCodeCancel, http2.ErrCodeRefusedStream:
	default:
		if len(report.Errors) < keptErrors {
			stream := binary.BigEndian.Uint32(one.kept[5:])
			report.Errors = append(report.Errors, fmt.Sprintf("%s on stream %d %s", what, stream, text))
		}
	}
}
