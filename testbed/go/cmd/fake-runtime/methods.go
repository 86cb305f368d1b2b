package main

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"testbed/internal/peer"
)

const streamingURL = "http://127.0.0.1:1/stream/token"

var methods = map[string]func(*State, *peer.Call) (proto.Message, error){
	"Version":                   version,
	"Status":                    unary((*State).readiness),
	"RunPodSandbox":             unary((*State).runPodSandbox),
	"StopPodSandbox":            unary((*State).stopPodSandbox),
	"RemovePodSandbox":          unary((*State).removePodSandbox),
	"PodSandboxStatus":          unary((*State).podSandboxStatus),
	"ListPodSandbox":            unary((*State).listPodSandbox),
	"UpdatePodSandboxResources": unary((*State).updatePodSandboxResources),
	"CreateContainer":           unary((*State).createContainer),
	"StartContainer":            unary((*State).startContainer),
	"StopContainer":             unary((*State).stopContainer),
	"RemoveContainer":           unary((*State).removeContainer),
	"ContainerStatus":           unary((*State).containerStatus),
	"ListContainers":            unary((*State).listContainers),
	"UpdateContainerResources":  unary((*State).updateContainerResources),
	"Exec":                      unary((*State).exec),
	"Attach":                    unary((*State).attach),
	"PortForward":               unary((*State).portForward),
	"ListImages":                unary((*State).listImages),
	"ImageStatus":               unary((*State).imageStatus),
}

// unary returns a handler that decodes the request and calls method with the state locked.
func unary[Message any, Request interface {
	*Message
	proto.Message
}, Response proto.Message](method func(*State, Request) (Response, error)) func(*State, *peer.Call) (proto.Message, error) {
	return func(state *State, call *peer.Call) (proto.Message, error) {
		request := Request(new(Message))
		if err := proto.Unmarshal(call.Request, request); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		state.mutex.Lock()
		defer state.mutex.Unlock()
		return method(state, request)
	}
}

func version(_ *State, call *peer.Call) (proto.Message, error) {
	api := "v1"
	if strings.HasPrefix(call.Path, "/runtime.v1alpha2.") {
		api = "v1alpha2"
	}
	return &runtime.VersionResponse{
		Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: api,
	}, nil
}

func (state *State) readiness(*runtime.StatusRequest) (*runtime.StatusResponse, error) {
	conditions := []*runtime.RuntimeCondition{
		{Type: runtime.RuntimeReady, Status: true}, {Type: runtime.NetworkReady, Status: true},
	}
	return &runtime.StatusResponse{Status: &runtime.RuntimeStatus{Conditions: conditions}}, nil
}

func (state *State) runPodSandbox(request *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
	created := &sandbox{
		id: state.newID(), config: request.GetConfig(), handler: request.GetRuntimeHandler(), createdAt: now(),
	}
	state.sandboxes.add(created.id, created)
	state.events.publish(created.id, runtime.ContainerEventType_CONTAINER_CREATED_EVENT)
	state.events.publish(created.id, runtime.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtime.RunPodSandboxResponse{PodSandboxId: created.id}, nil
}

func (state *State) stopPodSandbox(request *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	if found, err := state.sandboxes.find(request.GetPodSandboxId()); err == nil {
		found.state = runtime.PodSandboxState_SANDBOX_NOTREADY
		for _, each := range state.containers.byID {
			if each.sandboxID == found.id {
				state.setState(each, runtime.ContainerState_CONTAINER_EXITED)
			}
		}
		state.events.publish(found.id, runtime.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return &runtime.StopPodSandboxResponse{}, nil
}

func (state *State) removePodSandbox(
	request *runtime.RemovePodSandboxRequest,
) (*runtime.RemovePodSandboxResponse, error) {
	if found, err := state.sandboxes.find(request.GetPodSandboxId()); err == nil {
		for _, id := range append([]string{}, state.containers.ids...) {
			if state.containers.byID[id].sandboxID == found.id {
				state.containers.remove(id)
			}
		}
		state.sandboxes.remove(found.id)
		state.events.publish(found.id, runtime.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &runtime.RemovePodSandboxResponse{}, nil
}

func (state *State) podSandboxStatus(
	request *runtime.PodSandboxStatusRequest,
) (*runtime.PodSandboxStatusResponse, error) {
	found, err := state.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	info, err := verboseInfo(request.GetVerbose(), map[string]any{"config": found.config})
	return &runtime.PodSandboxStatusResponse{Status: found.status(), Info: info}, err
}

func (state *State) listPodSandbox(request *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	listed := &runtime.ListPodSandboxResponse{}
	filter := request.GetFilter()
	for _, id := range state.sandboxes.ids {
		one := state.sandboxes.byID[id]
		if strings.HasPrefix(id, filter.GetId()) && (filter.GetState() == nil || filter.GetState().GetState() == one.state) {
			listed.Items = append(listed.Items, one.listed())
		}
	}
	return listed, nil
}

func (state *State) updatePodSandboxResources(
	request *runtime.UpdatePodSandboxResourcesRequest,
) (*runtime.UpdatePodSandboxResourcesResponse, error) {
	found, err := state.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if found.config.GetLinux() != nil {
		merge(&found.config.Linux.Resources, request.GetResources())
	}
	return &runtime.UpdatePodSandboxResourcesResponse{}, nil
}

func (state *State) createContainer(
	request *runtime.CreateContainerRequest,
) (*runtime.CreateContainerResponse, error) {
	in, err := state.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	created := &container{id: state.newID(), sandboxID: in.id, config: request.GetConfig(), createdAt: now()}
	state.containers.add(created.id, created)
	state.events.publish(created.id, runtime.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtime.CreateContainerResponse{ContainerId: created.id}, nil
}

func (state *State) startContainer(request *runtime.StartContainerRequest) (*runtime.StartContainerResponse, error) {
	found, err := state.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	state.setState(found, runtime.ContainerState_CONTAINER_RUNNING)
	return &runtime.StartContainerResponse{}, nil
}

func (state *State) stopContainer(request *runtime.StopContainerRequest) (*runtime.StopContainerResponse, error) {
	if found, err := state.containers.find(request.GetContainerId()); err == nil {
		state.setState(found, runtime.ContainerState_CONTAINER_EXITED)
	}
	return &runtime.StopContainerResponse{}, nil
}

func (state *State) removeContainer(
	request *runtime.RemoveContainerRequest,
) (*runtime.RemoveContainerResponse, error) {
	if found, err := state.containers.find(request.GetContainerId()); err == nil {
		state.containers.remove(found.id)
		state.events.publish(found.id, runtime.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &runtime.RemoveContainerResponse{}, nil
}

func (state *State) containerStatus(
	request *runtime.ContainerStatusRequest,
) (*runtime.ContainerStatusResponse, error) {
	found, err := state.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	facts := map[string]any{"sandboxID": found.sandboxID, "config": found.config, "runtimeSpec": found.spec()}
	info, err := verboseInfo(request.GetVerbose(), facts)
	return &runtime.ContainerStatusResponse{Status: found.status(), Info: info}, err
}

func (state *State) listContainers(request *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	listed := &runtime.ListContainersResponse{}
	filter := request.GetFilter()
	for _, id := range state.containers.ids {
		one := state.containers.byID[id]
		fits := strings.HasPrefix(id, filter.GetId()) && strings.HasPrefix(one.sandboxID, filter.GetPodSandboxId())
		if fits && (filter.GetState() == nil || filter.GetState().GetState() == one.state) {
			listed.Containers = append(listed.Containers, one.listed())
		}
	}
	return listed, nil
}

func (state *State) updateContainerResources(
	request *runtime.UpdateContainerResourcesRequest,
) (*runtime.UpdateContainerResourcesResponse, error) {
	found, err := state.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if found.config.GetLinux() != nil {
		merge(&found.config.Linux.Resources, request.GetLinux())
	}
	return &runtime.UpdateContainerResourcesResponse{}, nil
}

func (state *State) exec(*runtime.ExecRequest) (*runtime.ExecResponse, error) {
	return &runtime.ExecResponse{Url: streamingURL}, nil
}

func (state *State) attach(*runtime.AttachRequest) (*runtime.AttachResponse, error) {
	return &runtime.AttachResponse{Url: streamingURL}, nil
}

func (state *State) portForward(*runtime.PortForwardRequest) (*runtime.PortForwardResponse, error) {
	return &runtime.PortForwardResponse{Url: streamingURL}, nil
}

func (state *State) listImages(*runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: []*runtime.Image{{Id: "fake", RepoTags: []string{"fake:1"}}}}, nil
}

func (state *State) imageStatus(request *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: request.GetImage().GetImage()}}, nil
}
