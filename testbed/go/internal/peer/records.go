package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"testbed/internal/schema"
	"testbed/internal/wire"
)

const (
	keptBytes   = 128 << 20
	keptRecords = 16384
	shownBytes  = 1 << 20
)

// record is one call as it arrived, and how it ended. What is needed only to be shown is not computed before.
type record struct {
	number    int
	path      string
	method    protoreflect.MethodDescriptor
	metadata  wire.Values
	deadlineS float64
	raw       []byte
	answers   int
	status    wire.Status
}

// Shown is a record as a test sees it.
type Shown struct {
	Number    int         `json:"number"`
	Method    string      `json:"method"`
	Metadata  wire.Values `json:"metadata"`
	DeadlineS float64     `json:"deadline_s,omitempty"`
	// Request is the message; large ones have only their size and digest.
	Request json.RawMessage `json:"request,omitempty"`
	// Unknown are bytes of fields that the schema does not have, by the path of their message.
	Unknown map[string][]byte `json:"unknown,omitempty"`
	Raw     []byte            `json:"raw,omitempty"`
	Size    int               `json:"size"`
	SHA256  string            `json:"sha256"`
	Answers int               `json:"answers"`
	// Status is empty while the call lasts.
	Status wire.Status `json:"status"`
}

// Counts are all calls ever, by method and status, and how many last.
type Counts struct {
	Ended map[string]map[string]int `json:"ended"`
	Open  int                       `json:"open"`
}

// records are the latest calls, as many as fit into some memory.
type records struct {
	mutex  sync.Mutex
	all    []*record
	bytes  int
	number int
	counts Counts
}

func (kept *records) add(new *record) {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	kept.number++
	kept.counts.Open++
	new.number = kept.number
	kept.all = append(kept.all, new)
	kept.bytes += len(new.raw)
	for kept.bytes > keptBytes || len(kept.all) > keptRecords {
		kept.bytes -= len(kept.all[0].raw)
		kept.all = kept.all[1:]
	}
}

func (kept *records) end(one *record, err error) {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	one.status = wire.StatusOf(err)
	if kept.counts.Ended == nil {
		kept.counts.Ended = map[string]map[string]int{}
	}
	byStatus := kept.counts.Ended[path.Base(one.path)]
	if byStatus == nil {
		byStatus = map[string]int{}
		kept.counts.Ended[path.Base(one.path)] = byStatus
	}
	byStatus[one.status.Code]++
	kept.counts.Open--
}

func (kept *records) answered(one *record) {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	one.answers++
}

func (kept *records) forget() {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	kept.all, kept.bytes, kept.counts.Ended = nil, 0, nil
}

func (kept *records) counted() Counts {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	copied := Counts{Open: kept.counts.Open, Ended: map[string]map[string]int{}}
	for method, byStatus := range kept.counts.Ended {
		copied.Ended[method] = maps.Clone(byStatus)
	}
	return copied
}

// shown are the records of one method, or all.
func (kept *records) shown(method string) []Shown {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	all := []Shown{}
	for _, one := range kept.all {
		if method == "" || method == path.Base(one.path) {
			all = append(all, one.show())
		}
	}
	return all
}

func (one *record) show() Shown {
	digest := sha256.Sum256(one.raw)
	shown := Shown{
		Number: one.number, Method: one.path, Metadata: one.metadata, DeadlineS: one.deadlineS,
		Size: len(one.raw), SHA256: hex.EncodeToString(digest[:]), Answers: one.answers, Status: one.status,
	}
	if len(one.raw) > shownBytes {
		return shown
	}
	shown.Raw = one.raw
	if one.method != nil {
		shown.Request, _ = schema.Decode(one.method.Input(), one.raw) // what cannot be decoded is shown raw
		shown.Unknown = schema.Unknown(one.method.Input(), one.raw)
	}
	return shown
}
