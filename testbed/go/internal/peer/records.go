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
	maxTotalBytes = 128 << 20
	maxRecords    = 16384
	maxViewBytes  = 1 << 20
)

// record is a received call and its status. Derived values are computed when it is viewed.
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

// RecordView is the JSON form of a record.
type RecordView struct {
	Number    int         `json:"number"`
	Method    string      `json:"method"`
	Metadata  wire.Values `json:"metadata"`
	DeadlineS float64     `json:"deadline_s,omitempty"`
	// Request is the decoded message; omitted for large ones.
	Request json.RawMessage `json:"request,omitempty"`
	// Unknown are the bytes of fields that are not in the schema, by the path of their message.
	Unknown map[string][]byte `json:"unknown,omitempty"`
	Raw     []byte            `json:"raw,omitempty"`
	Size    int               `json:"size"`
	SHA256  string            `json:"sha256"`
	Answers int               `json:"answers"`
	// Status is empty while the call is open.
	Status wire.Status `json:"status"`
}

// Counts are the ended calls by method and status, and the number of open ones.
type Counts struct {
	Ended map[string]map[string]int `json:"ended"`
	Open  int                       `json:"open"`
}

// records are the latest calls, bounded in count and bytes.
type records struct {
	mutex  sync.Mutex
	all    []*record
	bytes  int
	number int
	counts Counts
}

func (r *records) add(added *record) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.number++
	r.counts.Open++
	added.number = r.number
	r.all = append(r.all, added)
	r.bytes += len(added.raw)
	for r.bytes > maxTotalBytes || len(r.all) > maxRecords {
		r.bytes -= len(r.all[0].raw)
		r.all = r.all[1:]
	}
}

func (r *records) end(one *record, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	one.status = wire.StatusOf(err)
	if r.counts.Ended == nil {
		r.counts.Ended = map[string]map[string]int{}
	}
	byStatus := r.counts.Ended[path.Base(one.path)]
	if byStatus == nil {
		byStatus = map[string]int{}
		r.counts.Ended[path.Base(one.path)] = byStatus
	}
	byStatus[one.status.Code]++
	r.counts.Open--
}

func (r *records) answered(one *record) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	one.answers++
}

func (r *records) clear() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all, r.bytes, r.counts.Ended = nil, 0, nil
}

func (r *records) copyCounts() Counts {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	copied := Counts{Open: r.counts.Open, Ended: map[string]map[string]int{}}
	for method, byStatus := range r.counts.Ended {
		copied.Ended[method] = maps.Clone(byStatus)
	}
	return copied
}

// views returns the records of one method, or all.
func (r *records) views(method string) []RecordView {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := []RecordView{}
	for _, one := range r.all {
		if method == "" || method == path.Base(one.path) {
			all = append(all, one.view())
		}
	}
	return all
}

func (one *record) view() RecordView {
	digest := sha256.Sum256(one.raw)
	view := RecordView{
		Number: one.number, Method: one.path, Metadata: one.metadata, DeadlineS: one.deadlineS,
		Size: len(one.raw), SHA256: hex.EncodeToString(digest[:]), Answers: one.answers, Status: one.status,
	}
	if len(one.raw) > maxViewBytes {
		return view
	}
	view.Raw = one.raw
	if one.method != nil {
		view.Request, _ = schema.Decode(one.method.Input(), one.raw) // undecodable requests are reported raw
		view.Unknown = schema.Unknown(one.method.Input(), one.raw)
	}
	return view
}
