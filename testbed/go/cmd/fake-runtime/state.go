package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is the sandboxes and containers of the runtime.
type State struct {
	mutex      sync.Mutex
	startedAt  int64
	number     int
	sandboxes  *ordered[*sandbox]
	containers *ordered[*container]
	events     Events
}

type sandbox struct {
	id        string
	config    *runtime.PodSandboxConfig
	handler   string
	state     runtime.PodSandboxState
	createdAt int64
}

type container struct {
	id, sandboxID string
	config        *runtime.ContainerConfig
	state         runtime.ContainerState
	createdAt     int64
}

func newState() *State {
	return &State{
		startedAt: now(), sandboxes: newOrdered[*sandbox](), containers: newOrdered[*container](),
		events: Events{subscribers: map[chan []byte]bool{}},
	}
}

// ordered is a map that keeps insertion order.
type ordered[Item any] struct {
	byID map[string]Item
	ids  []string
}

func newOrdered[Item any]() *ordered[Item] { return &ordered[Item]{byID: map[string]Item{}} }

func (all *ordered[Item]) add(id string, item Item) {
	all.byID[id] = item
	all.ids = append(all.ids, id)
}

func (all *ordered[Item]) find(id string) (Item, error) {
	item, known := all.byID[id]
	if !known {
		return item, status.Errorf(codes.NotFound, "%q: not found", id)
	}
	return item, nil
}

func (all *ordered[Item]) remove(id string) {
	delete(all.byID, id)
	for i, each := range all.ids {
		if each == id {
			all.ids = append(all.ids[:i:i], all.ids[i+1:]...)
			return
		}
	}
}

// newID returns an id like those of real runtimes, unique across restarts.
func (state *State) newID() string {
	state.number++
	return fmt.Sprintf("%016x%048x", state.startedAt, state.number)
}

// exit marks a container as exited.
func (state *State) exit(id string) error {
	state.mutex.Lock()
	defer state.mutex.Unlock()
	found, err := state.containers.find(id)
	if err != nil {
		return err
	}
	state.setState(found, runtime.ContainerState_CONTAINER_EXITED)
	return nil
}

// setState changes the state of a container and publishes the event.
func (state *State) setState(one *container, target runtime.ContainerState) {
	if one.state == target {
		return
	}
	one.state = target
	kind := runtime.ContainerEventType_CONTAINER_STARTED_EVENT
	if target == runtime.ContainerState_CONTAINER_EXITED {
		kind = runtime.ContainerEventType_CONTAINER_STOPPED_EVENT
	}
	state.events.publish(one.id, kind)
}

func (one *sandbox) listed() *runtime.PodSandbox {
	return &runtime.PodSandbox{
		Id: one.id, Metadata: one.config.GetMetadata(), State: one.state, CreatedAt: one.createdAt,
		Labels: one.config.GetLabels(), Annotations: one.config.GetAnnotations(), RuntimeHandler: one.handler,
	}
}

func (one *container) listed() *runtime.Container {
	return &runtime.Container{
		Id: one.id, PodSandboxId: one.sandboxID, Metadata: one.config.GetMetadata(), Image: one.config.GetImage(),
		ImageRef: one.config.GetImage().GetImage(), State: one.state, CreatedAt: one.createdAt,
		Labels: one.config.GetLabels(), Annotations: one.config.GetAnnotations(),
	}
}

func (one *sandbox) status() *runtime.PodSandboxStatus {
	return &runtime.PodSandboxStatus{
		Id: one.id, Metadata: one.config.GetMetadata(), State: one.state, CreatedAt: one.createdAt,
		Labels: one.config.GetLabels(), Annotations: one.config.GetAnnotations(), RuntimeHandler: one.handler,
	}
}

func (one *container) status() *runtime.ContainerStatus {
	resources := &runtime.ContainerResources{Linux: one.config.GetLinux().GetResources()}
	return &runtime.ContainerStatus{
		Id: one.id, Metadata: one.config.GetMetadata(), Image: one.config.GetImage(), State: one.state,
		CreatedAt: one.createdAt, Labels: one.config.GetLabels(), Annotations: one.config.GetAnnotations(),
		Resources: resources,
	}
}

// spec returns the part of the OCI specification that the proxy reads: the environment of the process.
func (one *container) spec() map[string]any {
	variables := []string{}
	for _, each := range one.config.GetEnvs() {
		variables = append(variables, each.GetKey()+"="+string(each.GetValue()))
	}
	return map[string]any{"process": map[string]any{"env": variables}}
}

// verboseInfo returns what containerd adds to a verbose status: the whole configuration as JSON, under "info".
func verboseInfo(verbose bool, facts map[string]any) (map[string]string, error) {
	if !verbose {
		return nil, nil
	}
	text, err := json.Marshal(facts)
	return map[string]string{"info": string(text)}, err
}

// merge applies the fields that are set in an update.
func merge(target **runtime.LinuxContainerResources, update *runtime.LinuxContainerResources) {
	if *target == nil {
		*target = &runtime.LinuxContainerResources{}
	}
	proto.Merge(*target, update)
}

func now() int64 { return time.Now().UnixNano() }
