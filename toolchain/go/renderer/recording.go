package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
	"helm.sh/helm/v3/pkg/chart"
)

// recorded are the functions whose results differ from call to call.
var recorded = []string{
	"randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randInt", "randBytes", "uuidv4", "shuffle",
	"bcrypt", "htpasswd", "encryptAES", "genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert",
	"genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
}

// Recording is what one rendering has generated. It is given to the next one, which then generates the same.
type Recording struct {
	Version int                        `json:"version"`
	Now     *time.Time                 `json:"now,omitempty"`
	Calls   map[string]json.RawMessage `json:"calls,omitempty"`
}

// Recorder replays the results of an earlier rendering, and records those of this one.
//
// The key of a call is the file that is rendered, the function, its arguments, and how many equal calls came before it
// since the file was entered. So a file that is included by another one, such as for its checksum, has the same content
// as by itself.
type Recorder struct {
	earlier Recording
	result  Recording
	files   map[string]bool
	entered []entered
}

type entered struct {
	file  string
	calls map[string]int
}

func newRecorder(earlier Recording, chrt *chart.Chart) *Recorder {
	files := map[string]bool{}
	addFiles(chrt, files)
	result := Recording{Version: 1, Calls: map[string]json.RawMessage{}}
	return &Recorder{earlier, result, files, []entered{{"", map[string]int{}}}}
}

func addFiles(chrt *chart.Chart, files map[string]bool) {
	for _, file := range chrt.Templates {
		files[path.Join(chrt.ChartFullPath(), file.Name)] = true
	}
	for _, dependency := range chrt.Dependencies() {
		addFiles(dependency, files)
	}
}

// enter is called before a template is executed, and what it returns afterwards.
func (r *Recorder) enter(name string) func() {
	if !r.files[name] {
		return func() {}
	}
	r.entered = append(r.entered, entered{name, map[string]int{}})
	return func() { r.entered = r.entered[:len(r.entered)-1] }
}

// isUsed returns whether anything was generated.
func (r *Recorder) isUsed() bool { return r.result.Now != nil || len(r.result.Calls) > 0 }

// now returns the time of the first rendering.
func (r *Recorder) now() time.Time {
	if r.result.Now == nil {
		now := time.Now()
		if r.earlier.Now != nil {
			now = *r.earlier.Now
		}
		r.result.Now = &now
	}
	return *r.result.Now
}

func (r *Recorder) key(function string, arguments []reflect.Value) string {
	values := []any{}
	for _, argument := range arguments {
		values = append(values, argument.Interface())
	}
	text, err := json.Marshal(values)
	if err != nil {
		text = fmt.Append(nil, values...)
	}
	current := r.entered[len(r.entered)-1]
	call := fmt.Sprintf("%s %x", function, sha256.Sum256(text))
	current.calls[call]++
	return fmt.Sprintf("%s %s %d", current.file, call, current.calls[call])
}

// recording wraps a function: a result of this or an earlier rendering takes precedence over a new one.
func (r *Recorder) recording(name string, function any) any {
	kind := reflect.TypeOf(function)
	wrapped := func(arguments []reflect.Value) []reflect.Value {
		key := r.key(name, arguments)
		known, ok := r.result.Calls[key]
		if !ok {
			known, ok = r.earlier.Calls[key]
		}
		if result := reflect.New(kind.Out(0)); ok && json.Unmarshal(known, result.Interface()) == nil {
			r.result.Calls[key] = known
			results := []reflect.Value{result.Elem()}
			for i := 1; i < kind.NumOut(); i++ {
				results = append(results, reflect.Zero(kind.Out(i)))
			}
			return results
		}
		results := reflect.ValueOf(function).Call(arguments)
		if len(results) == 1 || results[1].IsNil() {
			if text, err := json.Marshal(results[0].Interface()); err == nil {
				r.result.Calls[key] = text
			}
		}
		return results
	}
	return reflect.MakeFunc(kind, wrapped).Interface()
}

// functions returns the template functions that replace those of Helm.
func (r *Recorder) functions() template.FuncMap {
	original := sprig.TxtFuncMap()
	functions := template.FuncMap{"now": r.now, "keys": sortedKeys, "values": valuesByKey}
	for _, name := range recorded {
		functions[name] = r.recording(name, original[name])
	}
	for name, function := range r.dateFunctions(original) {
		functions[name] = function
	}
	return functions
}

// dateFunctions returns the functions that use the current time in place of a date, or relate a date to it.
func (r *Recorder) dateFunctions(original template.FuncMap) template.FuncMap {
	inZone := original["dateInZone"].(func(string, any, string) string)
	round := original["durationRound"].(func(any) string)
	zoned := func(format string, date any, zone string) string { return inZone(format, r.dateOrNow(date), zone) }
	return template.FuncMap{
		"date":           func(format string, date any) string { return zoned(format, date, "Local") },
		"dateInZone":     zoned,
		"date_in_zone":   zoned,
		"htmlDate":       func(date any) string { return zoned(time.DateOnly, date, "Local") },
		"htmlDateInZone": func(date any, zone string) string { return zoned(time.DateOnly, date, zone) },
		"ago":            r.ago,
		"durationRound": func(duration any) string {
			if date, ok := duration.(time.Time); ok {
				return round(int64(r.now().Sub(date)))
			}
			return round(duration)
		},
	}
}

func (r *Recorder) dateOrNow(date any) any {
	switch date.(type) {
	case time.Time, *time.Time, int64, int, int32:
		return date
	}
	return r.now()
}

func (r *Recorder) ago(date any) string {
	then := r.now()
	switch date := date.(type) {
	case time.Time:
		then = date
	case int64:
		then = time.Unix(date, 0)
	case int:
		then = time.Unix(int64(date), 0)
	}
	return r.now().Sub(then).Round(time.Second).String()
}

// sortedKeys is sprig's keys in a fixed order: Go's order of maps differs from one rendering to the next.
func sortedKeys(dicts ...map[string]any) []string {
	keys := []string{}
	for _, dict := range dicts {
		start := len(keys)
		for key := range dict {
			keys = append(keys, key)
		}
		slices.Sort(keys[start:])
	}
	return keys
}

// valuesByKey is sprig's values in the order of the keys.
func valuesByKey(dict map[string]any) []any {
	values := []any{}
	for _, key := range sortedKeys(dict) {
		values = append(values, dict[key])
	}
	return values
}

// generated returns the texts in the results, which no message may contain.
func (r *Recorder) generated() []string {
	found := []string{}
	for _, result := range r.result.Calls {
		var value any
		if json.Unmarshal(result, &value) == nil {
			found = append(found, texts(value)...)
		}
	}
	return found
}

const shortest = 4 // masking shorter texts would make messages unreadable

// texts returns the strings and numbers in a tree, longest first, so that none is masked only in part.
func texts(tree any) []string {
	found := []string{}
	switch tree := tree.(type) {
	case float64:
		return texts(strconv.FormatFloat(tree, 'f', -1, 64))
	case string:
		if len(tree) >= shortest {
			found = append(found, tree)
		}
	case []any:
		for _, each := range tree {
			found = append(found, texts(each)...)
		}
	case map[string]any:
		for _, each := range tree {
			found = append(found, texts(each)...)
		}
	}
	sort.Slice(found, func(i, j int) bool { return len(found[i]) > len(found[j]) })
	return found
}
