"""Readiness of Services and Ingresses, from their load balancer status."""

from collections.abc import Iterable

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.fields import convert
from governor.kube.readiness.state import Readiness, failed, progressing, ready


class _Port(msgspec.Struct, frozen=True):
    port: int = 0
    error: str = ""


class _Address(msgspec.Struct, frozen=True):
    ip: str = ""
    hostname: str = ""
    ports: tuple[_Port, ...] = ()


class _LoadBalancer(msgspec.Struct, frozen=True):
    ingress: tuple[_Address, ...] = ()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    load_balancer: _LoadBalancer = _LoadBalancer()

    @property
    def addresses(self) -> tuple[_Address, ...]:
        return self.load_balancer.ingress


class _Spec(msgspec.Struct, frozen=True):
    type: str = "ClusterIP"


class _Service(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Ingress(msgspec.Struct, frozen=True):
    status: _Status = _Status()


def service(manifest: Object) -> Readiness:
    """Return READY if a load balancer has an address; other types are always ready, even without endpoints."""
    it = convert(manifest, _Service)
    if it.spec.type != "LoadBalancer":
        return ready(it.spec.type)
    if not it.status.addresses:
        return progressing("LoadBalancerPending", "the load balancer has no address yet")
    return _port_errors(it.status.addresses) or ready("LoadBalancer", _join(it.status.addresses))


def ingress(manifest: Object) -> Readiness:
    """Return READY even without an address, since many controllers never publish one; require it by a rule."""
    addresses = convert(manifest, _Ingress).status.addresses
    if not addresses:
        return ready("NoAddress", "its controller has published no address")
    return _port_errors(addresses) or ready("Address", _join(addresses))


def _port_errors(addresses: Iterable[_Address]) -> Readiness | None:
    errors = [f"port {port.port}: {port.error}" for each in addresses for port in each.ports if port.error]
    return failed("PortError", "; ".join(errors)) if errors else None


def _join(addresses: Iterable[_Address]) -> str:
    return ", ".join(each.ip or each.hostname for each in addresses)
