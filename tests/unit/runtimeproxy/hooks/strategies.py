"""Strategies for CRI requests and plugin responses, and records given by a test."""

from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message
from hypothesis import strategies as st

from governor.runtimeproxy.cri.cri_pb2 import KeyValue
from governor.runtimeproxy.cri.messages import KINDS, CriMessage, CriRequest
from governor.runtimeproxy.hooks.answers import Answer, differences
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.merge import MergedRequest, begin
from governor.runtimeproxy.plugins.messages import QuestionEncoder, decode_answer
from governor.runtimeproxy.store.records import ContainerRecord, Records, Sandbox
from governor.wire.hooks.hooks_pb2 import (
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from governor.wire.hooks.points import Hook, HookRequest, HookResponse, decode_request

# A text in field 4095, as of a later version.
UNKNOWN = b"\xfa\xff\x01\x05later"

R = TypeVar("R", bound=Message)
Fields = dict[str, Any]


class FixedRecords(msgspec.Struct):
    """Records given by a test."""

    sandboxes: dict[str, Sandbox] = {}
    containers: dict[str, ContainerRecord] = {}

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        return self.sandboxes.get(sandbox_id)

    def container(self, container_id: str) -> ContainerRecord | None:
        return self.containers.get(container_id)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    """Return dictionaries with some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


keys = st.sampled_from(["a", "b", "c", "example.com/d"])
texts = st.text(st.characters(codec="utf-8"), max_size=4)
entries = st.dictionaries(keys, texts, max_size=3)
counts = st.sampled_from([0, 1, 2, 1000])
limits = counts | st.just(-1)
cpusets = st.sampled_from(["", "0-3", "1"])
resources = some(
    cpu_period=counts,
    cpu_quota=limits,
    cpu_shares=counts,
    memory_limit_in_bytes=limits,
    oom_score_adj=limits,
    memory_swap_limit_in_bytes=limits,
    cpuset_cpus=cpusets,
    cpuset_mems=cpusets,
    hugepage_limits=st.lists(
        some(page_size=st.sampled_from(["2Mi", "1Gi"]), limit=st.integers(0, 2**64 - 1)), max_size=3
    ),
    unified=entries,
)
pods = some(
    metadata=some(name=texts, uid=texts, namespace=texts, attempt=st.integers(0, 3)),
    labels=entries,
    annotations=entries,
    linux=some(cgroup_parent=texts, overhead=resources, resources=resources),
)
containers = some(
    metadata=some(name=texts, attempt=st.integers(0, 3)),
    envs=st.lists(
        some(key=keys, value=st.binary(max_size=3)).map(lambda fields: KeyValue(**fields).SerializeToString()),
        max_size=6,
    ),
    labels=entries,
    annotations=entries,
    linux=some(resources=resources),
)
pod_responses = some(labels=entries, annotations=entries, cgroup_parent=texts, resources=resources).map(
    lambda fields: PodSandboxHookResponse(**fields)
)
container_responses = some(
    container_annotations=entries, container_resources=resources, pod_cgroup_parent=texts, container_envs=entries
).map(lambda fields: ContainerResourceHookResponse(**fields))


@st.composite
def run_requests(draw: st.DrawFn) -> CriRequest:
    """Draw a RunPodSandboxRequest with unknown fields in any of its messages."""
    fields = draw(some(config=pods, runtime_handler=texts))
    return _with_unknown(draw, KINDS[Call.RUN_POD_SANDBOX](**fields))


@st.composite
def create_requests(draw: st.DrawFn) -> CriRequest:
    """Draw a CreateContainerRequest that describes its sandbox, with unknown fields."""
    fields = draw(some(config=containers)) | {"pod_sandbox_id": "s", "sandbox_config": draw(pods)}
    return _with_unknown(draw, KINDS[Call.CREATE_CONTAINER](**fields))


@st.composite
def update_requests(draw: st.DrawFn) -> CriRequest:
    """Draw an UpdateContainerResourcesRequest of container ``c``, with unknown fields."""
    fields = draw(some(linux=resources, annotations=entries)) | {"container_id": "c"}
    return _with_unknown(draw, KINDS[Call.UPDATE_CONTAINER_RESOURCES](**fields))


def sent(merged: MergedRequest) -> HookRequest:
    """Return the hook request that the next plugin gets, as it decodes it."""
    shape = merged.message.request.call.shape
    hook = shape.pre or shape.post
    assert hook is not None
    return decode_request(hook, QuestionEncoder().encode(merged.question, remembers_environment=True))


def begun(call: Call, message: CriRequest, records: Records) -> MergedRequest:
    """Return a request before any plugin."""
    return begin(CriMessage(call, message), records)


def add(
    merged: MergedRequest,
    plugin: str,
    given: Answer,
    policy: ConflictPolicy = ConflictPolicy.LAST_WINS,
    *,
    replace_environment: bool = False,
) -> MergedRequest:
    """Merge a plugin's answer to the question that it got."""
    changed = differences(merged.original, merged.question, given, replace_environment=replace_environment)
    return merged.add(plugin, changed, policy)


def result(merged: MergedRequest) -> CriRequest:
    """Return the request that the runtime gets."""
    assert isinstance(merged.message, CriMessage)
    return merged.message.with_changes(merged.changes)


def cri_request(merged: MergedRequest) -> CriRequest:
    """Return the request before any plugin."""
    assert isinstance(merged.message, CriMessage)
    return merged.message.message


def answer(response: HookResponse) -> Answer:
    """Return a plugin's response as the proxy decodes it."""
    hook = Hook.PRE_RUN_POD_SANDBOX if isinstance(response, PodSandboxHookResponse) else Hook.PRE_CREATE_CONTAINER
    return decode_answer(hook, response.SerializeToString())


def echo(request: HookRequest) -> HookResponse:
    """Return the response of a plugin that echoes its request."""
    values = {field.name: value for field, value in request.ListFields()}
    kind = PodSandboxHookResponse if isinstance(request, PodSandboxHookRequest) else ContainerResourceHookResponse
    return kind(**{name: value for name, value in values.items() if name in kind.DESCRIPTOR.fields_by_name})


def submessages(message: Message) -> list[Message]:
    """Return a message and all messages in it, except map entries."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                found += submessages(inner)
    return found


def _with_unknown(draw: st.DrawFn, message: R) -> R:
    for each in submessages(message):
        if draw(st.booleans()):
            each.MergeFromString(UNKNOWN)
    return message
