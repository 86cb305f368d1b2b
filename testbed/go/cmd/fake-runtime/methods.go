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

var methods = map[string]func(*Memory, *peer.Call) (proto.Message, error){
	"Version":                   version,
	"Status":                    doing((*Memory).readiness),
	"RunPodSandbox":             doing((*Memory).runPodSandbox),
	"StopPodSandbox":            doing((*Memory).stopPodSandbox),
	"RemovePodSandbox":          doing((*Memory).removePodSandbox),
	"PodSandboxStatus":          doing((*Memory).podSandboxStatus),
	"ListPodSandbox":            doing((*Memory).listPodSandbox),
	"UpdatePodSandboxResources": doing((*Memory).updatePodSandboxResources),
	"CreateContainer":           doing((*Memory).createContainer),
	"StartContainer":            doing((*Memory).startContainer),
	"StopContainer":             doing((*Memory).stopContainer),
	"RemoveContainer":           doing((*Memory).removeContainer),
	"ContainerStatus":           doing((*Memory).containerStatus),
	"ListContainers":            doing((*Memory).listContainers),
	"UpdateContainerResources":  doing((*Memory).updateContainerResources),
	"Exec":                      doing((*Memory).exec),
	"Attach":                    doing((*Memory).attach),
	"PortForward":               doing((*Memory).portForward),
	"ListImages":                doing((*Memory).listImages),
	"ImageStatus":               doing((*Memory).imageStatus),
}

// doing decodes the request and lets one call at a time see the memory.
func doing[Wanted any, Request interface {
	*Wanted
	proto.Message
}, Given proto.Message](act func(*Memory, Request) (Given, error)) func(*Memory, *peer.Call) (proto.Message, error) {
	return func(memory *Memory, call *peer.Call) (proto.Message, error) {
		request := Request(new(Wanted))
		if err := proto.Unmarshal(call.Request, request); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		memory.mutex.Lock()
		defer memory.mutex.Unlock()
		return act(memory, request)
	}
}

func version(_ *Memory, call *peer.Call) (proto.Message, error) {
	api := "v1"
	if strings.HasPrefix(call.Path, "/runtime.v1alpha2.") {
		api = "v1alpha2"
	}
	return &runtime.VersionResponse{
		Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: api,
	}, nil
}

func (memory *Memory) readiness(*runtime.StatusRequest) (*runtime.StatusResponse, error) {
	conditions := []*runtime.RuntimeCondition{
		{Type: runtime.RuntimeReady, Status: true}, {Type: runtime.NetworkReady, Status: true},
	}
	return &runtime.StatusResponse{Status: &runtime.RuntimeStatus{Conditions: conditions}}, nil
}

func (memory *Memory) runPodSandbox(request *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
	new := &sandbox{
		id: memory.newID(), config: request.GetConfig(), handler: request.GetRuntimeHandler(), createdAt: now(),
	}
	memory.sandboxes.add(new.id, new)
	memory.events.tell(new.id, runtime.ContainerEventType_CONTAINER_CREATED_EVENT)
	memory.events.tell(new.id, runtime.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtime.RunPodSandboxResponse{PodSandboxId: new.id}, nil
}

func (memory *Memory) stopPodSandbox(request *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	if found, err := memory.sandboxes.find(request.GetPodSandboxId()); err == nil {
		found.state = runtime.PodSandboxState_SANDBOX_NOTREADY
		for _, each := range memory.containers.byID {
			if each.sandboxID == found.id {
				memory.become(each, runtime.ContainerState_CONTAINER_EXITED)
			}
		}
		memory.events.tell(found.id, runtime.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return &runtime.StopPodSandboxResponse{}, nil
}

func (memory *Memory) removePodSandbox(
	request *runtime.RemovePodSandboxRequest,
) (*runtime.RemovePodSandboxResponse, error) {
	if found, err := memory.sandboxes.find(request.GetPodSandboxId()); err == nil {
		for _, id := range append([]string{}, memory.containers.ids...) {
			if memory.containers.byID[id].sandboxID == found.id {
				memory.containers.remove(id)
			}
		}
		memory.sandboxes.remove(found.id)
		memory.events.tell(found.id, runtime.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &runtime.RemovePodSandboxResponse{}, nil
}

func (memory *Memory) podSandboxStatus(
	request *runtime.PodSandboxStatusRequest,
) (*runtime.PodSandboxStatusResponse, error) {
	found, err := memory.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	info, err := verbose(request.GetVerbose(), map[string]any{"config": found.config})
	return &runtime.PodSandboxStatusResponse{Status: found.status(), Info: info}, err
}

func (memory *Memory) listPodSandbox(request *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	listed := &runtime.ListPodSandboxResponse{}
	filter := request.GetFilter()
	for _, id := range memory.sandboxes.ids {
		one := memory.sandboxes.byID[id]
		if strings.HasPrefix(id, filter.GetId()) && (filter.GetState() == nil || filter.GetState().GetState() == one.state) {
			listed.Items = append(listed.Items, one.listed())
		}
	}
	return listed, nil
}

func (memory *Memory) updatePodSandboxResources(
	request *runtime.UpdatePodSandboxResourcesRequest,
) (*runtime.UpdatePodSandboxResourcesResponse, error) {
	found, err := memory.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if found.config.GetLinux() != nil {
		merge(&found.config.Linux.Resources, request.GetResources())
	}
	return &runtime.UpdatePodSandboxResourcesResponse{}, nil
}

func (memory *Memory) createContainer(
	request *runtime.CreateContainerRequest,
) (*runtime.CreateContainerResponse, error) {
	in, err := memory.sandboxes.find(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	new := &container{id: memory.newID(), sandboxID: in.id, config: request.GetConfig(), createdAt: now()}
	memory.containers.add(new.id, new)
	memory.events.tell(new.id, runtime.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtime.CreateContainerResponse{ContainerId: new.id}, nil
}

func (memory *Memory) startContainer(request *runtime.StartContainerRequest) (*runtime.StartContainerResponse, error) {
	found, err := memory.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	memory.become(found, runtime.ContainerState_CONTAINER_RUNNING)
	return &runtime.StartContainerResponse{}, nil
}

func (memory *Memory) stopContainer(request *runtime.StopContainerRequest) (*runtime.StopContainerResponse, error) {
	if found, err := memory.containers.find(request.GetContainerId()); err == nil {
		memory.become(found, runtime.ContainerState_CONTAINER_EXITED)
	}
	return &runtime.StopContainerResponse{}, nil
}

func (memory *Memory) removeContainer(
	request *runtime.RemoveContainerRequest,
) (*runtime.RemoveContainerResponse, error) {
	if found, err := memory.containers.find(request.GetContainerId()); err == nil {
		memory.containers.remove(found.id)
		memory.events.tell(found.id, runtime.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &runtime.RemoveContainerResponse{}, nil
}

func (memory *Memory) containerStatus(
	request *runtime.ContainerStatusRequest,
) (*runtime.ContainerStatusResponse, error) {
	found, err := memory.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	facts := map[string]any{"sandboxID": found.sandboxID, "config": found.config, "runtimeSpec": found.spec()}
	info, err := verbose(request.GetVerbose(), facts)
	return &runtime.ContainerStatusResponse{Status: found.status(), Info: info}, err
}

func (memory *Memory) listContainers(request *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	listed := &runtime.ListContainersResponse{}
	filter := request.GetFilter()
	for _, id := range memory.containers.ids {
		one := memory.containers.byID[id]
		fits := strings.HasPrefix(id, filter.GetId()) && strings.HasPrefix(one.sandboxID, filter.GetPodSandboxId())
		if fits && (filter.GetState() == nil || filter.GetState().GetState() == one.state) {
			listed.Containers = append(listed.Containers, one.listed())
		}
	}
	return listed, nil
}

func (memory *Memory) updateContainerResources(
	request *runtime.UpdateContainerResourcesRequest,
) (*runtime.UpdateContainerResourcesResponse, error) {
	found, err := memory.containers.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if found.config.GetLinux() != nil {
		merge(&found.config.Linux.Resources, request.GetLinux())
	}
	return &runtime.UpdateContainerResourcesResponse{}, nil
}

func (memory *Memory) exec(*runtime.ExecRequest) (*runtime.ExecResponse, error) {
	return &runtime.ExecResponse{Url: streamingURL}, nil
}

func (memory *Memory) attach(*runtime.AttachRequest) (*runtime.AttachResponse, error) {
	return &runtime.AttachResponse{Url: streamingURL}, nil
}

func (memory *Memory) portForward(*runtime.PortForwardRequest) (*runtime.PortForwardResponse, error) {
	return &runtime.PortForwardResponse{Url: streamingURL}, nil
}

func (memory *Memory) listImages(*runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: []*runtime.Image{{Id: "fake", RepoTags: []string{"fake:1"}}}}, nil
}

func (memory *Memory) imageStatus(request *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: request.GetImage().GetImage()}}, nil
}
