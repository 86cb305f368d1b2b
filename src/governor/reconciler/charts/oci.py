"""Packed charts in OCI registries: pulled by the digest of their manifest, and verified at each step."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.reconciler.charts.access import Access
from governor.reconciler.charts.archive import MAX_BYTES
from governor.reconciler.charts.digests import archive_digest, check
from governor.reconciler.charts.download import LOOPBACK, UNAUTHORIZED, Answer, ask, body_of, connecting

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CHART: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST_BYTES: Final = 4 * 1024 * 1024
_TOKEN_BYTES: Final = 64 * 1024
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')


class _Layer(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str
    digest: str


class _Manifest(msgspec.Struct, frozen=True):
    layers: tuple[_Layer, ...] = ()


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


async def fetch(url: str, digest: str, access: Access) -> bytes:
    """Return the archive of a chart, whose manifest must have this digest."""
    async with connecting(url, access.authorities) as session:
        repository = _Repository(session, url, access)
        manifest = await repository.get(f"manifests/{digest}", _MANIFEST, _MANIFEST_BYTES)
        check(digest, archive_digest(manifest), url)
        wanted = _chart_digest(manifest, url)
        content = await repository.get(f"blobs/{wanted}", "*/*", MAX_BYTES)
        check(wanted, archive_digest(content), f"the chart in {url}")
        return content


def _chart_digest(manifest: bytes, place: str) -> str:
    try:
        layers = msgspec.json.decode(manifest, type=_Manifest).layers
    except msgspec.DecodeError as error:
        raise invalid("oci-manifest", f"{place}: the manifest cannot be read") from error
    found = [each.digest for each in layers if each.media_type == _CHART]
    if len(found) != 1:
        raise invalid("oci-manifest", f"{place} is not a chart: push it with `helm push`")
    return found[0]


class _Repository:
    """A repository of a registry, which may require authentication."""

    def __init__(self, session: aiohttp.ClientSession, url: str, access: Access) -> None:
        parts = urlsplit(url)
        is_plain = parts.hostname in LOOPBACK and not access.authorities
        self._base = f"{'http' if is_plain else 'https'}://{parts.netloc}/v2{parts.path}"
        self._name = parts.path.lstrip("/")
        self._session = session
        self._access = access
        self._authorization: dict[str, str] = {}

    async def get(self, path: str, media_type: str, limit: int) -> bytes:
        """Return a manifest or a blob."""
        url, accept = f"{self._base}/{path}", {"Accept": media_type}
        answer = await ask(self._session, url, accept | self._authorization, limit)
        if answer.status == UNAUTHORIZED and not self._authorization:
            self._authorization = await self._authorize(answer)
            answer = await ask(self._session, url, accept | self._authorization, limit)
        return body_of(answer, url)

    async def _authorize(self, answer: Answer) -> dict[str, str]:
        """Return the header that a registry asks for: the credentials, or a token that they are exchanged for."""
        basic = self._access.basic()
        scheme, _, rest = answer.challenge.partition(" ")
        if scheme.lower() != "bearer":
            return basic
        url = _token_url(dict(_PARAMETER.findall(rest)), self._name)
        body = body_of(await ask(self._session, url, basic, _TOKEN_BYTES), url)
        try:
            token = msgspec.json.decode(body, type=_Token)
        except msgspec.DecodeError as error:
            raise GovernorError(Kind.UNAVAILABLE, "oci-token", f"{url}: the response contains no token") from error
        return {"Authorization": f"Bearer {token.token or token.access_token}"}


def _token_url(challenge: Mapping[str, str], repository: str) -> str:
    """Return where a token for reading a repository is requested; credentials are sent there, so it must be TLS."""
    realm = challenge.get("realm", "")
    parts = urlsplit(realm)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise GovernorError(
            Kind.DENIED, "oci-token", f"the registry asks for credentials to be sent without TLS to {realm!r}"
        )
    query = {"scope": f"repository:{repository}:pull"}
    if "service" in challenge:
        query["service"] = challenge["service"]
    return f"{realm}?{urlencode(query)}"
