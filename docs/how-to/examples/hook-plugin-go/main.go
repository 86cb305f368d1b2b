// A hook plugin in Go, written with the stubs that koord-runtime-proxy's plugins use: containers of pods with the label
// tier=batch get few CPU shares.
//
//	go run . /run/batch.sock
package main

import (
	"context"
	"log"
	"net"
	"os"

	hooks "github.com/koordinator-sh/koordinator/apis/runtime/v1alpha1"
	"google.golang.org/grpc"
)

type batch struct {
	hooks.UnimplementedRuntimeHookServiceServer
}

func (batch) PreCreateContainerHook(_ context.Context, request *hooks.ContainerResourceHookRequest) (*hooks.ContainerResourceHookResponse, error) {
	if request.PodLabels["tier"] != "batch" {
		return &hooks.ContainerResourceHookResponse{}, nil
	}
	return &hooks.ContainerResourceHookResponse{ContainerResources: &hooks.LinuxContainerResources{CpuShares: 2}}, nil
}

func main() {
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	hooks.RegisterRuntimeHookServiceServer(server, batch{})
	log.Fatal(server.Serve(listener))
}
