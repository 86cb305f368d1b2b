"""Sends notifications to web servers. No error contains the URL, which may contain a token."""

import asyncio
import base64
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client import Client
from governor.process.clock import Clock
from governor.process.flowcontrol.limiter import Limiter, Rate
from governor.reconciler.charts.download import LOOPBACK
from governor.reconciler.core_kinds import SECRETS
from governor.reconciler.kinds.definition import SecretKey
from governor.reconciler.kinds.failure import Sink
from governor.reconciler.notifications.notification import Notification, body_of

TIMEOUT_S: Final = 10.0
RATE: Final = Rate(per_s=0.5, burst=10)
"""Notifications to one URL: a cluster that fails as a whole must not flood a system of tickets."""
_KINDS: Final = {400: Kind.INVALID, 401: Kind.UNAUTHENTICATED, 403: Kind.DENIED, 404: Kind.INVALID, 422: Kind.INVALID}


class Endpoint(NamedTuple):
    """A web server and how it is accessed."""

    url: str
    token: str = ""
    authorities: str = ""


async def read_endpoint(hub: Client, namespace: str, sink: Sink) -> Endpoint:
    """Return the endpoint that the Secrets of a sink contain; NOT_FOUND if one is missing, INVALID for a wrong URL."""
    webhook = sink.webhook
    url = await _read(hub, namespace, webhook.url_secret)
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise invalid("sink-url", "the URL must begin with https://, or with http:// on loopback: correct the Secret")
    token = await _read(hub, namespace, webhook.token_secret) if webhook.token_secret else ""
    authorities = await _read(hub, namespace, webhook.ca_secret) if webhook.ca_secret else ""
    return Endpoint(url, token, authorities)


async def _read(hub: Client, namespace: str, key: SecretKey) -> str:
    try:
        found = await hub.get(SECRETS, key.name, namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        raise _missing(f"there is no Secret {key.name}: create it") from error
    data = found.get("data") or {}
    if key.key not in data:
        raise _missing(f"the Secret {key.name} has no key {key.key}: add it")
    return base64.b64decode(data[key.key]).decode(errors="replace").strip()


def _missing(message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "sink-secret", message)


class Webhooks:
    """Sends notifications, at a limited rate to each URL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}

    def is_allowed(self, endpoint: Endpoint) -> bool:
        """Return whether the rate limit permits another notification now, which counts then."""
        return self._limiters.setdefault(endpoint.url, Limiter(RATE, self._clock)).try_acquire()

    async def send(self, sink: Sink, endpoint: Endpoint, notification: Notification) -> None:
        """Send a notification; raise unless the server answers with a status of 2xx."""
        webhook = sink.webhook
        body = body_of(notification, webhook.template)
        headers = {"Content-Type": webhook.content_type, "Idempotency-Key": notification.id}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        status = await _post(endpoint, body, headers)
        if not 200 <= status < 300:
            kind = _KINDS.get(status, Kind.UNAVAILABLE)
            raise GovernorError(kind, "sink-refuses", f"the server answers with status {status}")


async def _post(endpoint: Endpoint, body: str, headers: dict[str, str]) -> int:
    context = _verification(endpoint.authorities) if endpoint.authorities else True
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aiohttp.ClientSession(trust_env=True, connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.post(endpoint.url, data=body.encode(), headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status
    except TimeoutError as error:
        message = f"the server does not answer within {TIMEOUT_S:g} s"
        raise GovernorError(Kind.DEADLINE, "sink-unavailable", message) from error
    except aiohttp.ClientConnectorCertificateError as error:
        message = (
            f"the server's certificate is not accepted ({_cause(error.certificate_error)}): correct it or caSecret"
        )
        raise GovernorError(Kind.UNAVAILABLE, "sink-certificate", message) from error
    except (aiohttp.ClientError, ValueError, OSError) as error:
        message = f"the server cannot be reached ({type(error).__name__})"
        raise GovernorError(Kind.UNAVAILABLE, "sink-unavailable", message) from error


def _cause(error: Exception) -> str:
    return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else type(error).__name__


def _verification(authorities: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authorities)
    except ssl.SSLError as error:
        raise invalid("sink-certificates", "its certificates cannot be read: correct the Secret") from error
