from governor.wire.hooks import hooks_pb2 as _hooks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SynchronizeRequest(_message.Message):
    __slots__ = ("pods",)
    PODS_FIELD_NUMBER: _ClassVar[int]
    pods: _containers.RepeatedCompositeFieldContainer[PodState]
    def __init__(self, pods: _Optional[_Iterable[_Union[PodState, _Mapping]]] = ...) -> None: ...

class PodState(_message.Message):
    __slots__ = ("sandbox_id", "pod", "containers")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    pod: _hooks_pb2.PodSandboxHookRequest
    containers: _containers.RepeatedCompositeFieldContainer[_hooks_pb2.ContainerResourceHookRequest]
    def __init__(self, sandbox_id: _Optional[str] = ..., pod: _Optional[_Union[_hooks_pb2.PodSandboxHookRequest, _Mapping]] = ..., containers: _Optional[_Iterable[_Union[_hooks_pb2.ContainerResourceHookRequest, _Mapping]]] = ...) -> None: ...

class SynchronizeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
