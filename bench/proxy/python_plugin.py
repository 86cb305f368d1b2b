"""A typical Python plugin: a grpcio server with a few threads.

python -m bench.proxy.python_plugin SOCKET
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc  # type: ignore[import-untyped]

from bench.proxy.requests import hook_response
from governor.wire.hooks.hooks_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from governor.wire.hooks.points import SERVICE, Hook

THREADS: Final = 4
_CHANGED: Final = ContainerResourceHookResponse.FromString(hook_response(0))


def change(request: ContainerResourceHookRequest, _: grpc.ServicerContext) -> ContainerResourceHookResponse:
    """Change the container to be created."""
    return _CHANGED


def leave(request: ContainerResourceHookRequest, _: grpc.ServicerContext) -> ContainerResourceHookResponse:
    """Leave a container unchanged."""
    return ContainerResourceHookResponse()


def leave_pod(request: PodSandboxHookRequest, _: grpc.ServicerContext) -> PodSandboxHookResponse:
    """Leave a pod unchanged."""
    return PodSandboxHookResponse()


def handler(hook: Hook) -> grpc.RpcMethodHandler:
    """Return the handler of a hook."""
    if hook.is_of_pod:
        return grpc.unary_unary_rpc_method_handler(
            leave_pod, PodSandboxHookRequest.FromString, PodSandboxHookResponse.SerializeToString
        )
    return grpc.unary_unary_rpc_method_handler(
        change if hook is Hook.PRE_CREATE_CONTAINER else leave,
        ContainerResourceHookRequest.FromString,
        ContainerResourceHookResponse.SerializeToString,
    )


def main() -> None:
    """Serve until the process is terminated."""
    server = grpc.server(ThreadPoolExecutor(THREADS))
    handlers = {f"{hook}Hook": handler(hook) for hook in Hook}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
