"""A plugin as one writes it in Python: grpcio's server with a few threads.

python -m bench.proxy.python_plugin SOCKET
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc  # type: ignore[import-untyped]

from bench.proxy.sample import plugins_answer
from governor.wire.hooks.hooks_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from governor.wire.hooks.points import SERVICE, Hook

THREADS: Final = 4
_CHANGED: Final = ContainerResourceHookResponse.FromString(plugins_answer(0))


def change(request: ContainerResourceHookRequest, _: grpc.ServicerContext) -> ContainerResourceHookResponse:
    """Change the container that is about to be created."""
    return _CHANGED


def leave(request: ContainerResourceHookRequest, _: grpc.ServicerContext) -> ContainerResourceHookResponse:
    """Change nothing of a container."""
    return ContainerResourceHookResponse()


def leave_pod(request: PodSandboxHookRequest, _: grpc.ServicerContext) -> PodSandboxHookResponse:
    """Change nothing of a pod."""
    return PodSandboxHookResponse()


def handler(hook: Hook) -> grpc.RpcMethodHandler:
    """Who answers a hook."""
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
    """Serve until the process is ended."""
    server = grpc.server(ThreadPoolExecutor(THREADS))
    handlers = {f"{hook}Hook": handler(hook) for hook in Hook}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
