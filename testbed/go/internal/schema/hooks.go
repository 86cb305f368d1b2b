package schema

import (
	"context"
	_ "embed"

	"github.com/bufbuild/protocompile"
)

const hooksFile = "hooks.proto"

//go:embed hooks.proto
var hooks string

// Hooks returns the schema of the hook protocol, compiled from its .proto file at start.
func Hooks() (*Schema, error) {
	source := &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{hooksFile: hooks})}
	compiler := protocompile.Compiler{Resolver: source}
	files, err := compiler.Compile(context.Background(), hooksFile)
	if err != nil {
		return nil, err
	}
	return New(files[0]), nil
}
