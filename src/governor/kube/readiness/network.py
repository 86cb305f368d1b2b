"""Services and Ingresses: what the load balancer in front of them says."""

from collections.abc import Iterable

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.fields import read
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready


class _Port(msgspec.Struct, frozen=True):
    port: int = 0
    error: str = ""


class _Entrance(msgspec.Struct, frozen=True):
    ip: str = ""
    hostname: str = ""
    ports: tuple[_Port, ...] = ()


class _LoadBalancer(msgspec.Struct, frozen=True):
    ingress: tuple[_Entrance, ...] = ()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    load_balancer: _LoadBalancer = _LoadBalancer()

    @property
    def entrances(self) -> tuple[_Entrance, ...]:
        return self.load_balancer.ingress


class _Spec(msgspec.Struct, frozen=True):
    type: str = "ClusterIP"


class _Service(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Ingress(msgspec.Struct, frozen=True):
    status: _Status = _Status()


def service(manifest: Object) -> Readiness:
    """A load balancer must have an address; others work as soon as they exist, with or without endpoints."""
    it = read(manifest, _Service)
    if it.spec.type != "LoadBalancer":
        return ready(it.spec.type)
    if not it.status.entrances:
        return progressing("LoadBalancerPending", "the load balancer has no address yet")
    return _refused(it.status.entrances) or ready("LoadBalancer", _addresses(it.status.entrances))


def ingress(manifest: Object) -> Readiness:
    """Ready without an address, too: many controllers never publish one. Whoever needs it gives a rule."""
    entrances = read(manifest, _Ingress).status.entrances
    if not entrances:
        return ready("NoAddress", "its controller has published no address")
    return _refused(entrances) or ready("Address", _addresses(entrances))


def _refused(entrances: Iterable[_Entrance]) -> Readiness | None:
    errors = [f"port {port.port}: {port.error}" for each in entrances for port in each.ports if port.error]
    return failed("PortError", "; ".join(errors)) if errors else None


def _addresses(entrances: Iterable[_Entrance]) -> str:
    return ", ".join(each.ip or each.hostname for each in entrances)
