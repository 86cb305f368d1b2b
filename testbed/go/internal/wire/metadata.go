package wire

import (
	"encoding/base64"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Values is the JSON form of metadata; values of "-bin" keys are base64.
type Values map[string][]string

// FromMetadata converts gRPC metadata to Values.
func FromMetadata(received metadata.MD) Values {
	values := Values{}
	for key, all := range received {
		for _, value := range all {
			if isBinary(key) {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			values[key] = append(values[key], value)
		}
	}
	return values
}

// Metadata converts Values to gRPC metadata.
func (values Values) Metadata() (metadata.MD, error) {
	sent := metadata.MD{}
	for key, all := range values {
		for _, value := range all {
			if isBinary(key) {
				plain, err := base64.StdEncoding.DecodeString(value)
				if err != nil {
					return nil, err
				}
				value = string(plain)
			}
			sent.Append(key, value)
		}
	}
	return sent, nil
}

func isBinary(key string) bool { return strings.HasSuffix(strings.ToLower(key), "-bin") }
