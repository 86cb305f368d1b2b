"""Handlers for tokens and enrolment."""

from governor.errors import GovernorError, Kind
from governor.server.api.endpoints import Call, Response
from governor.server.identity.principals import view
from governor.values.secret import Secret
from governor.wire.credentials import JoinToken
from governor.wire.rest import Enrolment, EnrolRequest, TokenCreated, TokenRequest


async def create(call: Call) -> Response:
    """Create a token; its text is returned only here."""
    request = call.body
    assert isinstance(request, TokenRequest)  # noqa: S101 - guaranteed by the endpoint's body type
    token, secret = await call.services.identity.create(request)
    text = secret if request.runtime is None else _join_text(call, request.runtime, secret)
    return Response(TokenCreated(view(token), text.reveal()), status=201, headers=(("Cache-Control", "no-store"),))


def _join_text(call: Call, runtime: str, secret: Secret) -> Secret:
    site = call.services.site
    return JoinToken(server=site.url, runtime=runtime, secret=secret.reveal(), ca=site.ca).encode()


async def list_tokens(call: Call) -> Response:
    """Return all tokens without their secrets."""
    return Response(await call.services.identity.tokens())


async def revoke(call: Call) -> Response:
    """Revoke a token."""
    await call.services.identity.revoke(call.path["token"])
    return Response(status=204)


async def enrol(call: Call) -> Response:
    """Enrol an agent's key as the identity of its runtime."""
    request = call.body
    assert isinstance(request, EnrolRequest)  # noqa: S101 - guaranteed by the endpoint's body type
    if not call.services.enrolment_limiter.try_acquire():
        call.services.metrics.rejected.labels("enrolments").inc()
        message = "too many enrolments at once (enrolments-per-minute); retry in a moment"
        raise GovernorError(Kind.UNAVAILABLE, "too-many", message)
    await call.services.identity.enrol(request)
    site = call.services.site
    return Response(Enrolment(request.runtime, site.delivery_key_id, site.delivery_key))
