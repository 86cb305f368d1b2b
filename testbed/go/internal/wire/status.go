package wire

import (
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// Status is a gRPC status as JSON shows it.
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

// StatusOf is how a call ended.
func StatusOf(err error) Status {
	plain := status.Convert(err).Proto()
	shown := Status{Code: Name(codes.Code(plain.GetCode())), Message: plain.GetMessage()}
	for _, detail := range plain.GetDetails() {
		shown.Details = append(shown.Details, Detail{TypeURL: detail.GetTypeUrl(), Value: detail.GetValue()})
	}
	return shown
}

// Name is the code as the protocol spells it, such as NOT_FOUND.
func Name(number codes.Code) string { return code.Code(number).String() }

// Error is what a server returns to end a call like this; nil for OK.
func (shown Status) Error() error {
	plain := &statuspb.Status{Code: code.Code_value[shown.Code], Message: shown.Message}
	for _, detail := range shown.Details {
		plain.Details = append(plain.Details, &anypb.Any{TypeUrl: detail.TypeURL, Value: detail.Value})
	}
	return status.ErrorProto(plain)
}
