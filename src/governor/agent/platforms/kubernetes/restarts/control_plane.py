"""Dapr's control plane, and whether Dapr is fit for a restart: its services, and the Secrets of components. No I/O.

While Dapr's injector is down, new pods start without a sidecar and become ready all the same; while its operator or
sentry is down, their sidecars cannot start. Dapr's operator fails the whole list of a sidecar's components if the
Secret of one of them is missing.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.workloads.pods import flags_of
from governor.kube.objects import Object
from governor.values.digest import digest

APP_LABEL: Final = "app"
"""The label by which Dapr's chart names each of its services."""
INJECTOR: Final = "dapr-sidecar-injector"
SERVICES: Final = ("dapr-operator", "dapr-sentry", INJECTOR)
PLACEMENT: Final = "dapr-placement-server"
_SIDECAR_IMAGE: Final = "SIDECAR_IMAGE"
_WATCH_INTERVAL: Final = "watch-interval"
_WATCH_NAMESPACE: Final = "watch-namespace"
_NO_WATCHDOG: Final = frozenset({"", "0", "f", "false", "no", "off", "once"})
"""Values of the flag with which no pod is replaced; ``once`` means only when the operator starts."""
_KUBERNETES_STORES: Final = frozenset({"", "kubernetes"})


class Service(msgspec.Struct, frozen=True):
    """One service of Dapr's control plane.

    ``revision`` changes with its spec, and when it becomes available or unavailable. ``sidecar_image`` is what an
    injector gives to new pods. ``watch_interval`` is how often the watchdog of an operator checks all pods, or those of
    ``watch_namespace``; empty if it has none that runs.
    """

    name: str
    namespace: str
    available: int
    desired: int
    revision: str = ""
    sidecar_image: str = ""
    watch_interval: str = ""
    watch_namespace: str = ""

    @property
    def is_available(self) -> bool:
        """Whether it works: one replica is enough, but placement replicas elect a leader by majority."""
        return self.available > (self.desired // 2 if self.name == PLACEMENT else 0)


class ControlPlane(msgspec.Struct, frozen=True):
    """The services of Dapr's control plane that are installed."""

    services: tuple[Service, ...] = ()

    @property
    def revision(self) -> str:
        """What changes when any service is changed, becomes available or unavailable."""
        return digest(sorted(f"{each.namespace}/{each.name} {each.revision}" for each in self.services))

    @property
    def sidecar_image(self) -> str:
        """The image of daprd in new pods; empty if it is not known."""
        images = {each.sidecar_image for each in self.services if each.name == INJECTOR}
        return images.pop() if len(images) == 1 else ""

    def watch_interval(self, namespace: str) -> str:
        """Return how often Dapr's watchdog replaces pods of a namespace that have no sidecar; empty if it does not."""
        intervals = (each.watch_interval for each in self.services if each.watch_namespace in ("", namespace))
        return next(filter(None, intervals), "")

    def obstacle(self, *, hosts_actors: bool | None = False) -> str:
        """Return why a sidecar that starts now would not work, or ``""``.

        If it is not known whether it hosts actors, placement must work if it is installed: without it there are none.
        """
        has_placement = any(each.name == PLACEMENT for each in self.services)
        needs_placement = hosts_actors or (hosts_actors is None and has_placement)
        for name in (*SERVICES, *((PLACEMENT,) if needs_placement else ())):
            found = [each for each in self.services if each.name == name]
            if not found:
                return f"{name} is not installed: install Dapr's control plane; no workload is restarted before"
            if not any(each.is_available for each in found):
                first = found[0]
                counts = f"{first.available} of {first.desired} replicas in namespace {first.namespace}"
                return f"{name} is not available ({counts}): no workload is restarted until it is"
        return ""


class _ServiceMetadata(msgspec.Struct, frozen=True):
    namespace: str
    labels: dict[str, str]
    uid: str = ""
    generation: int = 0


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Container(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()


class _PodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _ServiceSpec(msgspec.Struct, frozen=True):
    replicas: int = 1
    template: _Template = _Template()


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str = ""
    last_transition_time: str = ""


class _ServiceStatus(msgspec.Struct, frozen=True, rename="camel"):
    available_replicas: int = 0
    conditions: tuple[_Condition, ...] = ()


class _ServiceManifest(msgspec.Struct, frozen=True):
    metadata: _ServiceMetadata
    spec: _ServiceSpec = _ServiceSpec()
    status: _ServiceStatus = _ServiceStatus()


def service_of(manifest: Object) -> Service:
    """Return the service that a Deployment or StatefulSet of Dapr's chart runs."""
    read = msgspec.convert(manifest, _ServiceManifest)
    containers = read.spec.template.spec.containers
    flags = {name: value for each in containers for name, value in flags_of((*each.command, *each.args)).items()}
    variables = {each.name: each.value for container in containers for each in container.env}
    interval = flags.get(_WATCH_INTERVAL, "")
    return Service(
        read.metadata.labels[APP_LABEL],
        read.metadata.namespace,
        read.status.available_replicas,
        read.spec.replicas,
        _revision(read),
        variables.get(_SIDECAR_IMAGE, ""),
        "" if interval.lower() in _NO_WATCHDOG else interval,
        flags.get(_WATCH_NAMESPACE, ""),
    )


def _revision(read: _ServiceManifest) -> str:
    changed = [each.last_transition_time for each in read.status.conditions if each.type == "Available"]
    is_available = read.status.available_replicas > 0
    return " ".join([read.metadata.uid, str(read.metadata.generation), str(is_available), *changed])


class SecretKey(msgspec.Struct, frozen=True, order=True):
    """A reference to one key of a Kubernetes Secret."""

    name: str
    key: str


class Component(msgspec.Struct, frozen=True):
    """What a Component needs of Kubernetes Secrets; no scopes means every app id."""

    name: str
    scopes: frozenset[str] = frozenset()
    secrets: tuple[SecretKey, ...] = ()

    def is_loaded_by(self, app_id: str) -> bool:
        """Return whether the sidecar of an application loads it."""
        return not self.scopes or app_id in self.scopes


class _Name(msgspec.Struct, frozen=True):
    name: str


class _SecretKeyRef(msgspec.Struct, frozen=True):
    name: str = ""
    key: str = ""


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    secret_key_ref: _SecretKeyRef | None = None


class _Spec(msgspec.Struct, frozen=True):
    metadata: tuple[_Item, ...] | None = None


class _Auth(msgspec.Struct, frozen=True, rename="camel"):
    secret_store: str = ""


class _Manifest(msgspec.Struct, frozen=True):
    metadata: _Name
    spec: _Spec = _Spec()
    auth: _Auth | None = None
    scopes: frozenset[str] | None = None


def component_of(manifest: Object) -> Component:
    """Return what a Component's manifest needs; values in it are not read."""
    read = msgspec.convert(manifest, _Manifest)
    from_kubernetes = (read.auth or _Auth()).secret_store in _KUBERNETES_STORES
    references = [item.secret_key_ref for item in read.spec.metadata or () if item.secret_key_ref]
    # Without a key, Dapr uses the Secret's name.
    secrets = [SecretKey(each.name, each.key or each.name) for each in references if each.name and from_kubernetes]
    return Component(read.metadata.name, read.scopes or frozenset(), tuple(secrets))


def dapr_obstacle(
    control_plane: ControlPlane,
    components: Iterable[Component],
    secrets: Mapping[str, frozenset[str]],
    *,
    app_id: str,
    hosts_actors: bool | None = False,
) -> str:
    """Return why a sidecar of ``app_id`` that starts now would fail, or ``""``.

    ``components`` are those of its namespace, ``secrets`` the keys of the Secrets there by name.
    """
    return control_plane.obstacle(hosts_actors=hosts_actors) or _secret_obstacle(
        (each for each in components if each.is_loaded_by(app_id)), secrets
    )


def _secret_obstacle(components: Iterable[Component], secrets: Mapping[str, frozenset[str]]) -> str:
    for component in components:
        for wanted in component.secrets:
            where = f"Component {component.name} refers to key {wanted.key} of Secret {wanted.name}"
            if wanted.name not in secrets:
                return f"{where}, which does not exist: a sidecar that starts now would get no components at all"
            if wanted.key not in secrets[wanted.name]:
                return f"{where}, which has no such key"
    return ""
