package wire

import (
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// Status is the JSON form of a gRPC status.
type Status struct {
	Code    string   `json:"code"`
	Message string   `json:"message,omitempty"`
	Details []Detail `json:"details,omitempty"`
}

// Detail is one of a status's details.
type Detail struct {
	TypeURL string `json:"type_url"`
	Value   []byte `json:"value"`
}

// StatusOf returns the status of a call's error.
func StatusOf(err error) Status {
	plain := status.Convert(err).Proto()
	converted := Status{Code: Name(codes.Code(plain.GetCode())), Message: plain.GetMessage()}
	for _, detail := range plain.GetDetails() {
		converted.Details = append(converted.Details, Detail{TypeURL: detail.GetTypeUrl(), Value: detail.GetValue()})
	}
	return converted
}

// Name returns the code as the protocol spells it, such as NOT_FOUND.
func Name(number codes.Code) string { return code.Code(number).String() }

// Error returns the error with which a server ends a call with this status; nil for OK.
func (from Status) Error() error {
	plain := &statuspb.Status{Code: code.Code_value[from.Code], Message: from.Message}
	for _, detail := range from.Details {
		plain.Details = append(plain.Details, &anypb.Any{TypeUrl: detail.TypeURL, Value: detail.Value})
	}
	return status.ErrorProto(plain)
}
