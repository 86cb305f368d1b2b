// Package schema translates messages of known methods between bytes and JSON.
package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Schema knows the methods of some services.
type Schema struct {
	file    protoreflect.FileDescriptor
	methods map[string]protoreflect.MethodDescriptor
}

// New reads all services of a file. The packages are further names of its own package, with the same messages.
func New(file protoreflect.FileDescriptor, packages ...string) *Schema {
	known := &Schema{file: file, methods: map[string]protoreflect.MethodDescriptor{}}
	for _, name := range append(packages, string(file.Package())) {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				known.methods[fmt.Sprintf("/%s.%s/%s", name, service.Name(), method.Name())] = method
			}
		}
	}
	return known
}

// Find is the method at a path, or nil.
func (known *Schema) Find(path string) protoreflect.MethodDescriptor { return known.methods[path] }

// Path is where a method is called that is given by its short name, or by its path already.
func (known *Schema) Path(name, packageName string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	if packageName == "" {
		packageName = string(known.file.Package())
	}
	for i := range known.file.Services().Len() {
		path := fmt.Sprintf("/%s.%s/%s", packageName, known.file.Services().Get(i).Name(), name)
		if known.Find(path) != nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s has no method %s", packageName, name)
}

// Encode turns JSON into the bytes of a message.
func Encode(kind protoreflect.MessageDescriptor, text json.RawMessage) ([]byte, error) {
	message := dynamicpb.NewMessage(kind)
	if len(text) > 0 {
		if err := protojson.Unmarshal(text, message); err != nil {
			return nil, err
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

// Decode turns the bytes of a message into JSON, with the names of the .proto file.
func Decode(kind protoreflect.MessageDescriptor, raw []byte) (json.RawMessage, error) {
	message := dynamicpb.NewMessage(kind)
	if err := proto.Unmarshal(raw, message); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
}

// Unknown are the bytes of fields that the schema does not have, by the path of the message that holds them.
func Unknown(kind protoreflect.MessageDescriptor, raw []byte) map[string][]byte {
	message := dynamicpb.NewMessage(kind)
	if proto.Unmarshal(raw, message) != nil {
		return nil
	}
	found := map[string][]byte{}
	gather(message, "", found)
	return found
}

func gather(message protoreflect.Message, path string, found map[string][]byte) {
	if unknown := message.GetUnknown(); len(unknown) > 0 {
		found[path] = unknown
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		below := strings.TrimPrefix(fmt.Sprintf("%s.%s", path, field.Name()), ".")
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				gather(value.List().Get(i).Message(), fmt.Sprintf("%s.%d", below, i), found)
			}
		default:
			gather(value.Message(), below, found)
		}
		return true
	})
}
