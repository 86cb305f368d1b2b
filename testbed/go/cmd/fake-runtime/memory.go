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

// Memory is all that the runtime would run.
type Memory struct {
	mutex      sync.Mutex
	began      int64
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

func newMemory() *Memory {
	return &Memory{
		began: now(), sandboxes: newOrdered[*sandbox](), containers: newOrdered[*container](),
		events: Events{listeners: map[chan []byte]bool{}},
	}
}

// ordered keeps things by id in the order in which they came.
type ordered[Thing any] struct {
	byID map[string]Thing
	ids  []string
}

func newOrdered[Thing any]() *ordered[Thing] { return &ordered[Thing]{byID: map[string]Thing{}} }

func (all *ordered[Thing]) add(id string, thing Thing) {
	all.byID[id] = thing
	all.ids = append(all.ids, id)
}

func (all *ordered[Thing]) find(id string) (Thing, error) {
	thing, known := all.byID[id]
	if !known {
		return thing, status.Errorf(codes.NotFound, "%q: not found", id)
	}
	return thing, nil
}

func (all *ordered[Thing]) remove(id string) {
	delete(all.byID, id)
	for i, each := range all.ids {
		if each == id {
			all.ids = append(all.ids[:i:i], all.ids[i+1:]...)
			return
		}
	}
}

// newID looks like those of real runtimes; after a restart none of them comes again.
func (memory *Memory) newID() string {
	memory.number++
	return fmt.Sprintf("%016x%048x", memory.began, memory.number)
}

// exit ends a container as if its process had ended.
func (memory *Memory) exit(id string) error {
	memory.mutex.Lock()
	defer memory.mutex.Unlock()
	found, err := memory.containers.find(id)
	if err != nil {
		return err
	}
	memory.become(found, runtime.ContainerState_CONTAINER_EXITED)
	return nil
}

// become changes the state of a container and tells it to who listens.
func (memory *Memory) become(one *container, state runtime.ContainerState) {
	if one.state == state {
		return
	}
	one.state = state
	kind := runtime.ContainerEventType_CONTAINER_STARTED_EVENT
	if state == runtime.ContainerState_CONTAINER_EXITED {
		kind = runtime.ContainerEventType_CONTAINER_STOPPED_EVENT
	}
	memory.events.tell(one.id, kind)
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

// spec is what of the specification for runc is looked at: the variables as the process gets them.
func (one *container) spec() map[string]any {
	variables := []string{}
	for _, each := range one.config.GetEnvs() {
		variables = append(variables, each.GetKey()+"="+string(each.GetValue()))
	}
	return map[string]any{"process": map[string]any{"env": variables}}
}

// verbose is what containerd tells beside a status: the whole configuration as JSON, under "info".
func verbose(wanted bool, facts map[string]any) (map[string]string, error) {
	if !wanted {
		return nil, nil
	}
	text, err := json.Marshal(facts)
	return map[string]string{"info": string(text)}, err
}

// merge changes only what an update names.
func merge(target **runtime.LinuxContainerResources, update *runtime.LinuxContainerResources) {
	if *target == nil {
		*target = &runtime.LinuxContainerResources{}
	}
	proto.Merge(*target, update)
}

func now() int64 { return time.Now().UnixNano() }
