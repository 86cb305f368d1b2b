package peer

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"testbed/internal/schema"
	"testbed/internal/wire"
)

// Rule says how some calls are answered differently. The first one that fits a call is taken.
type Rule struct {
	// Method is the last part of the path; every method if empty.
	Method string `json:"method,omitempty"`
	// When names a text field of the request by its path and how its value begins.
	When *When `json:"when,omitempty"`
	// Times is how many calls the rule is for; 0 means all.
	Times int `json:"times,omitempty"`

	DelayS float64 `json:"delay_s,omitempty"`
	// Hang answers never, and ends when the caller gives up.
	Hang bool `json:"hang,omitempty"`
	// Crash ends this process without an answer.
	Crash bool `json:"crash,omitempty"`

	Headers  wire.Values  `json:"headers,omitempty"`
	Trailers wire.Values  `json:"trailers,omitempty"`
	Status   *wire.Status `json:"status,omitempty"`

	// Raw is sent as it is; Answer is a message as JSON, in which {n} is the number of the repetition.
	Raw    []byte          `json:"raw,omitempty"`
	Answer json.RawMessage `json:"answer,omitempty"`
	// Echo sends back what request and answer both have a field for; Answer is merged into it.
	Echo bool `json:"echo,omitempty"`
	// AnswerBytes fills the answer up to that size, by a field that nobody knows.
	AnswerBytes int `json:"answer_bytes,omitempty"`
	// Repeat sends the answer so many times, with a pause between.
	Repeat int     `json:"repeat,omitempty"`
	EveryS float64 `json:"every_s,omitempty"`
}

// When is a condition on a request.
type When struct {
	Path   []string `json:"path"`
	Prefix string   `json:"prefix"`
}

// Settings are all rules.
type Settings struct {
	Rules []Rule `json:"rules"`
}

// rules are those in force, with how often each was taken.
type rules struct {
	mutex sync.Mutex
	all   []Rule
	taken []int
}

func (current *rules) set(settings Settings) {
	current.mutex.Lock()
	defer current.mutex.Unlock()
	current.all, current.taken = settings.Rules, make([]int, len(settings.Rules))
}

func (current *rules) take(call *Call) *Rule {
	current.mutex.Lock()
	defer current.mutex.Unlock()
	for i := range current.all {
		rule := &current.all[i]
		if (rule.Times == 0 || current.taken[i] < rule.Times) && rule.fits(call) {
			current.taken[i]++
			return rule
		}
	}
	return &Rule{}
}

func (rule *Rule) fits(call *Call) bool {
	if rule.Method != "" && rule.Method != path.Base(call.Path) {
		return false
	}
	return rule.When == nil || rule.When.holds(call)
}

func (when *When) holds(call *Call) bool {
	if call.method == nil {
		return false
	}
	message := protoreflect.Message(dynamicpb.NewMessage(call.method.Input()))
	if proto.Unmarshal(call.Request, message.Interface()) != nil {
		return false
	}
	last := len(when.Path) - 1
	for _, name := range when.Path[:last] {
		field := message.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil || field.Message() == nil || field.IsMap() || field.IsList() {
			return false
		}
		message = message.Get(field).Message()
	}
	field := message.Descriptor().Fields().ByName(protoreflect.Name(when.Path[last]))
	return field != nil && strings.HasPrefix(message.Get(field).String(), when.Prefix)
}

// perform does what the rule says, and lets the program do the rest.
func (rule *Rule) perform(call *Call, program Program) error {
	if rule.Crash {
		os.Exit(3)
	}
	if rule.Hang {
		<-call.Context().Done()
		return call.GivenUp()
	}
	if err := call.wait(rule.DelayS); err != nil {
		return err
	}
	if err := rule.sendMetadata(call); err != nil {
		return err
	}
	if rule.Status != nil {
		return rule.Status.Error()
	}
	if rule.Raw == nil && rule.Answer == nil && !rule.Echo {
		return program(call)
	}
	return rule.answer(call)
}

func (rule *Rule) sendMetadata(call *Call) error {
	for _, each := range []struct {
		values wire.Values
		set    func(metadata.MD)
	}{
		{rule.Headers, func(values metadata.MD) { _ = call.stream.SetHeader(values) }},
		{rule.Trailers, call.stream.SetTrailer},
	} {
		values, err := each.values.Metadata()
		if err != nil {
			return err
		}
		each.set(values)
	}
	return nil
}

func (rule *Rule) answer(call *Call) error {
	for number := range max(rule.Repeat, 1) {
		if number > 0 {
			if err := call.wait(rule.EveryS); err != nil {
				return err
			}
		}
		raw, err := rule.message(call, number)
		if err != nil {
			return err
		}
		if err := call.Send(raw); err != nil {
			return err
		}
	}
	return nil
}

// message is one answer. Encoded messages that follow each other are merged by who reads them.
func (rule *Rule) message(call *Call, number int) ([]byte, error) {
	if rule.Raw != nil {
		return rule.Raw, nil
	}
	if call.method == nil {
		return nil, fmt.Errorf("%s is not known: only raw bytes can answer it", call.Path)
	}
	text := strings.ReplaceAll(string(rule.Answer), "{n}", fmt.Sprint(number))
	changed, err := schema.Encode(call.method.Output(), json.RawMessage(text))
	if err != nil || !rule.Echo {
		return changed, err
	}
	same, err := echo(call)
	return append(same, changed...), err
}

// echo is an answer with those fields of the request that an answer has, too.
func echo(call *Call) ([]byte, error) {
	request := dynamicpb.NewMessage(call.method.Input())
	if err := proto.Unmarshal(call.Request, request); err != nil {
		return nil, err
	}
	given := dynamicpb.NewMessage(call.method.Output())
	request.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		same := given.Descriptor().Fields().ByName(field.Name())
		switch {
		case same == nil:
		case field.IsMap():
			target := given.Mutable(same).Map()
			value.Map().Range(func(key protoreflect.MapKey, each protoreflect.Value) bool {
				target.Set(key, each)
				return true
			})
		default:
			given.Set(same, value)
		}
		return true
	})
	return proto.MarshalOptions{Deterministic: true}.Marshal(given)
}

func seconds(given float64) time.Duration { return time.Duration(given * float64(time.Second)) }
