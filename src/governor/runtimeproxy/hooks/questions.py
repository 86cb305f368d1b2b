"""What is asked about a call: the pod or container that it concerns, as handlers of its hooks see it. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.environment import NO_VARIABLES, Environment, decode_environment
from governor.runtimeproxy.hooks import fields
from governor.runtimeproxy.hooks.calls import ENVIRONMENT, Call
from governor.runtimeproxy.hooks.changes import Change
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.store.records import ContainerRecord, Records, Sandbox, updated_container
from governor.wire.hooks.workload import Container, Pod, Resources


class Question(msgspec.Struct, frozen=True):
    """A pod, or a container of it."""

    pod: Pod
    container: Container | None = None
    environment: Environment = NO_VARIABLES
    """The variables of a container that is created."""
    remembered: bytes = b""
    """The encoded variables of a container that was created before, if they are kept."""
    is_update: bool = False
    update: Resources | None = None
    """The resources that an update specifies."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the pod's labels."""
        return self.pod.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the pod's annotations."""
        return self.pod.annotations

    @property
    def sent_environment(self) -> Environment:
        """Return the variables that a plugin may have been sent."""
        return decode_environment(self.remembered) if self.remembered else self.environment

    def with_changes(self, changes: Sequence[Change]) -> "Question":
        """Return the question for the next plugin, which sees these changes."""
        if not changes:
            return self
        if self.container is None:
            return msgspec.structs.replace(self, pod=fields.with_changes(self.pod, changes))
        variables = [(each.path[1], each.new) for each in changes if each.path[0] == ENVIRONMENT]
        others = [each for each in changes if each.path[0] != ENVIRONMENT]
        environment = self.environment.with_changes(variables) if variables else self.environment
        container = fields.with_changes(self.container, others)
        return msgspec.structs.replace(self, container=container, environment=environment)


def question_for(request: Request, records: Records) -> Question:
    """Return the question about a call; raise NOT_FOUND if its sandbox or container is unknown."""
    match request.call:
        case Call.RUN_POD_SANDBOX:
            return Question(request.pod or Pod())
        case Call.STOP_POD_SANDBOX:
            return Question(_sandbox(request.sandbox_id, records).pod)
        case Call.CREATE_CONTAINER:
            return _new_container(request, _pod_of_new_container(request, records))
        case Call.UPDATE_CONTAINER_RESOURCES:
            after = _known_container(updated_container(_container(request.container_id, records), request), records)
            return msgspec.structs.replace(after, is_update=True, update=request.resources)
        case Call.START_CONTAINER | Call.STOP_CONTAINER:
            return _known_container(_container(request.container_id, records), records)
        case _:
            raise ValueError(f"{request.call} has no hook")


def _new_container(request: Request, pod: Pod) -> Question:
    return Question(pod, _in_pod(request.container or Container(), pod), request.environment)


def _known_container(record: ContainerRecord, records: Records) -> Question:
    pod = _sandbox(record.sandbox_id, records).pod
    return Question(pod, _in_pod(record.container, pod), remembered=record.variables)


def _in_pod(container: Container, pod: Pod) -> Container:
    if container.pod_cgroup_parent or not pod.cgroup_parent:
        return container
    return msgspec.structs.replace(container, pod_cgroup_parent=pod.cgroup_parent)


def _sandbox(sandbox_id: str, records: Records) -> Sandbox:
    sandbox = records.sandbox(sandbox_id)
    if sandbox is None:
        raise _unknown("sandbox", sandbox_id)
    return sandbox


def _pod_of_new_container(request: Request, records: Records) -> Pod:
    """Return the recorded pod or, if it has no record, the one described in the request."""
    sandbox = records.sandbox(request.sandbox_id)
    if sandbox is not None:
        return sandbox.pod
    if request.describe_pod is not None:
        return request.describe_pod()
    raise _unknown("sandbox", request.sandbox_id)


def _container(container_id: str, records: Records) -> ContainerRecord:
    record = records.container(container_id)
    if record is None:
        raise _unknown("container", container_id)
    return record


def _unknown(kind: str, name: str) -> GovernorError:
    message = f"{kind} {name!r} is unknown to the runtime proxy, so no plugin can be called for it"
    return GovernorError(Kind.NOT_FOUND, f"unknown-{kind}", message)
