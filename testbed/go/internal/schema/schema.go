// Package schema converts messages of known methods between bytes and JSON.
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

// Schema is the methods of some services, by path.
type Schema struct {
	file    protoreflect.FileDescriptor
	methods map[string]protoreflect.MethodDescriptor
}

// New returns the schema of all services in a file. packages are aliases of the file's package.
func New(file protoreflect.FileDescriptor, packages ...string) *Schema {
	schema := &Schema{file: file, methods: map[string]protoreflect.MethodDescriptor{}}
	for _, name := range append(packages, string(file.Package())) {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				schema.methods[fmt.Sprintf("/%s.%s/%s", name, service.Name(), method.Name())] = method
			}
		}
	}
	return schema
}

// Find returns the method at a path, or nil.
func (schema *Schema) Find(path string) protoreflect.MethodDescriptor { return schema.methods[path] }

// Path returns the path of a method given by short name or path.
func (schema *Schema) Path(name, packageName string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	if packageName == "" {
		packageName = string(schema.file.Package())
	}
	for i := range schema.file.Services().Len() {
		path := fmt.Sprintf("/%s.%s/%s", packageName, schema.file.Services().Get(i).Name(), name)
		if schema.Find(path) != nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s has no method %s", packageName, name)
}

// Encode encodes a JSON message.
func Encode(kind protoreflect.MessageDescriptor, text json.RawMessage) ([]byte, error) {
	message := dynamicpb.NewMessage(kind)
	if len(text) > 0 {
		if err := protojson.Unmarshal(text, message); err != nil {
			return nil, err
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

// Decode returns an encoded message as JSON, with the field names of the .proto file.
func Decode(kind protoreflect.MessageDescriptor, raw []byte) (json.RawMessage, error) {
	message := dynamicpb.NewMessage(kind)
	if err := proto.Unmarshal(raw, message); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
}

// Unknown returns the bytes of fields that are not in the schema, by the path of their message.
func Unknown(kind protoreflect.MessageDescriptor, raw []byte) map[string][]byte {
	message := dynamicpb.NewMessage(kind)
	if proto.Unmarshal(raw, message) != nil {
		return nil
	}
	found := map[string][]byte{}
	collect(message, "", found)
	return found
}

func collect(message protoreflect.Message, path string, found map[string][]byte) {
	if unknown := message.GetUnknown(); len(unknown) > 0 {
		found[path] = unknown
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		below := strings.TrimPrefix(fmt.Sprintf("%s.%s", path, field.Name()), ".")
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				collect(value.List().Get(i).Message(), fmt.Sprintf("%s.%d", below, i), found)
			}
		default:
			collect(value.Message(), below, found)
		}
		return true
	})
}
