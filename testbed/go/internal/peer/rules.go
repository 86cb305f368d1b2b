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

// Rule changes the response to matching calls. The first matching rule applies.
type Rule struct {
	// Method is the last part of the path; "" matches every method.
	Method string `json:"method,omitempty"`
	// When is a condition on a text field of the request.
	When *When `json:"when,omitempty"`
	// Times is the number of calls that the rule applies to; 0 means all.
	Times int `json:"times,omitempty"`

	DelayS float64 `json:"delay_s,omitempty"`
	// Hang never responds; the call ends when the client cancels it.
	Hang bool `json:"hang,omitempty"`
	// Crash ends the process without a response.
	Crash bool `json:"crash,omitempty"`

	Headers  wire.Values  `json:"headers,omitempty"`
	Trailers wire.Values  `json:"trailers,omitempty"`
	Status   *wire.Status `json:"status,omitempty"`

	// Raw is sent unchanged; Answer is a message as JSON, in which {n} is replaced by the number of the repetition.
	Raw    []byte          `json:"raw,omitempty"`
	Answer json.RawMessage `json:"answer,omitempty"`
	// Echo copies the fields that request and response have in common; Answer is merged into them.
	Echo bool `json:"echo,omitempty"`
	// AnswerBytes pads the response to that size with an unknown field.
	AnswerBytes int `json:"answer_bytes,omitempty"`
	// Repeat sends the response this many times, EveryS seconds apart.
	Repeat int     `json:"repeat,omitempty"`
	EveryS float64 `json:"every_s,omitempty"`
}

// When is true if the field at Path starts with Prefix.
type When struct {
	Path   []string `json:"path"`
	Prefix string   `json:"prefix"`
}

// Settings holds all rules.
type Settings struct {
	Rules []Rule `json:"rules"`
}

// rules holds the current rules and how often each has matched.
type rules struct {
	mutex   sync.Mutex
	all     []Rule
	matched []int
}

func (current *rules) set(settings Settings) {
	current.mutex.Lock()
	defer current.mutex.Unlock()
	current.all, current.matched = settings.Rules, make([]int, len(settings.Rules))
}

func (current *rules) match(call *Call) *Rule {
	current.mutex.Lock()
	defer current.mutex.Unlock()
	for i := range current.all {
		rule := &current.all[i]
		if (rule.Times == 0 || current.matched[i] < rule.Times) && rule.matches(call) {
			current.matched[i]++
			return rule
		}
	}
	return &Rule{}
}

func (rule *Rule) matches(call *Call) bool {
	if rule.Method != "" && rule.Method != path.Base(call.Path) {
		return false
	}
	return rule.When == nil || rule.When.matches(call)
}

func (when *When) matches(call *Call) bool {
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

// apply applies the rule, and calls the handler unless the rule responds.
func (rule *Rule) apply(call *Call, handler Handler) error {
	if rule.Crash {
		os.Exit(3)
	}
	if rule.Hang {
		<-call.Context().Done()
		return call.ContextError()
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
		return handler(call)
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

// message returns one response. Readers merge concatenated encoded messages.
func (rule *Rule) message(call *Call, number int) ([]byte, error) {
	if rule.Raw != nil {
		return rule.Raw, nil
	}
	if call.method == nil {
		return nil, fmt.Errorf("%s is unknown: only a raw response is possible", call.Path)
	}
	text := strings.ReplaceAll(string(rule.Answer), "{n}", fmt.Sprint(number))
	changed, err := schema.Encode(call.method.Output(), json.RawMessage(text))
	if err != nil || !rule.Echo {
		return changed, err
	}
	same, err := echo(call)
	return append(same, changed...), err
}

// echo returns a response with the fields that request and response have in common.
func echo(call *Call) ([]byte, error) {
	request := dynamicpb.NewMessage(call.method.Input())
	if err := proto.Unmarshal(call.Request, request); err != nil {
		return nil, err
	}
	response := dynamicpb.NewMessage(call.method.Output())
	request.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		same := response.Descriptor().Fields().ByName(field.Name())
		switch {
		case same == nil:
		case field.IsMap():
			target := response.Mutable(same).Map()
			value.Map().Range(func(key protoreflect.MapKey, each protoreflect.Value) bool {
				target.Set(key, each)
				return true
			})
		default:
			response.Set(same, value)
		}
		return true
	})
	return proto.MarshalOptions{Deterministic: true}.Marshal(response)
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
