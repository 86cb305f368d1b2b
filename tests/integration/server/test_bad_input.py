"""Bad input is rejected with its location and reason, and changes nothing."""

import io
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.wire.problems import Problem
from governor.wire.rest import PREFIX
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

STORE = component("store", redisHost="a:1")
CANARY = "canary-5f0e9b"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run a server with one runtime and one profile; shared, because no test here changes anything."""
    async with running(tmp_path_factory.mktemp("server")) as bed:
        await bed.apply(runtime("r1"), profile("orders", STORE))
        yield bed


async def rejection(bed: ServerBed, *documents: dict[str, Any], **options: Any) -> GovernorError:
    """Return the error of a change after checking that nothing was stored."""
    with pytest.raises(GovernorError) as caught:
        await bed.apply(*documents, **options)
    async with bed.client() as admin:
        assert [each.number for each in await admin.revisions()] == [1]
        assert (await admin.runtime("r1")).sequence == 1
    return caught.value


async def post(
    bed: ServerBed,
    path: str,
    data: bytes,
    media_type: str = "application/json",
    headers: Mapping[str, str] = MappingProxyType({}),
    **query: str,
) -> Problem:
    """Post a raw body and return the problem in the response."""
    headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}", "Content-Type": media_type, **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(bed.url + PREFIX + path, data=io.BytesIO(data), headers=headers, params=query) as response,
    ):
        assert response.content_type == "application/problem+json"
        found = msgspec.json.decode(await response.read(), type=Problem)
        assert found.status == response.status
        return found


def changed_store(**changes: Any) -> dict[str, Any]:
    return {**STORE, **changes}


INVALID = [
    pytest.param({**runtime("r2"), "kind": "Cluster"}, "kind", "unknown kind 'Cluster'", id="unknown-kind"),
    pytest.param(
        {**runtime("r2"), "apiVersion": "v1"},
        "apiVersion",
        "must be runtime-governor.dev/v1alpha1",
        id="unknown-version",
    ),
    pytest.param({**runtime("r2"), "spec": {"platform": 3}}, "spec.platform", "must be a string", id="wrong-type"),
    pytest.param(
        {**runtime("r2"), "spec": {"platform": "moon"}},
        "spec.platform",
        "must be local, kubernetes or cloudfoundry",
        id="wrong-value",
    ),
    pytest.param({**runtime("r2"), "extra": 1}, "extra", "unknown field", id="unknown-field"),
    pytest.param(runtime("R_2"), "metadata.name", "lower-case", id="bad-name"),
    pytest.param(
        profile("p", selector={"runtime": "nope"}), "spec.selector.runtime", "unknown runtime", id="unknown-runtime"
    ),
    pytest.param(profile("p", changed_store(spec=1 << 70)), "spec.resources[0].spec", "64 bits", id="large-integer"),
    pytest.param(profile("p", changed_store(kind="Pod")), "spec.resources[0].kind", "Pod", id="resource-kind"),
    pytest.param(
        profile("p", changed_store(metadata={})), "spec.resources[0].metadata.name", "is missing", id="no-name"
    ),
    pytest.param(
        profile("p", changed_store(metadata=7)), "spec.resources[0].metadata", "must be a map", id="no-metadata"
    ),
    pytest.param(
        profile("p", changed_store(spec={"type": 5})), "spec.resources[0].spec.type", "string", id="resource-type"
    ),
    pytest.param(
        profile("p", component("s", redisHost="${runtime.nope}")),
        "spec.resources[0].spec.metadata[0].value",
        "unknown variable",
        id="unknown-variable",
    ),
    pytest.param(
        profile("p", component("s", redisPassword="${runtime.id}")),
        "spec.resources[0].spec.metadata[0].value",
        "sealed",
        id="sealed-variable",
    ),
    pytest.param(
        profile("p", component("${runtime.id}")),
        "spec.resources[0].metadata.name",
        "letters and digits",
        id="variable-name",
    ),
    pytest.param(
        profile("p", component("s", redisPassword="***")),
        "spec.resources[0].spec.metadata[0].value",
        "none is stored",
        id="mask-without-value",
    ),
    pytest.param(
        profile("p", changed_store(spec={"type": "state.redis", "version": "v1", "metadata": {"$sealed": "x"}})),
        "spec.resources[0].spec.metadata",
        "reserved",
        id="reserved-key",
    ),
    pytest.param(profile("p", STORE, STORE), "spec.resources[1]", "is defined twice", id="duplicate-resource"),
    pytest.param(
        profile("p", {**component("s"), "spec": {"version": "v1"}}),
        "spec.resources[0].spec.type",
        "missing",
        id="incomplete-once-folded",
    ),
    pytest.param(
        profile("p", {**STORE, "metadata": {"name": "s", "namespace": "foreign"}}),
        "spec.resources[0].metadata.namespace",
        "only the namespaces default",
        id="foreign-namespace",
    ),
]


@pytest.mark.parametrize(("document", "path", "reason"), INVALID)
async def test_an_invalid_document_is_rejected_with_its_location(
    bed: ServerBed, document: dict[str, Any], path: str, reason: str
) -> None:
    error = await rejection(bed, document)
    locations = {(detail.document, detail.path) for detail in error.details}
    assert (f"{document['kind']}/{document['metadata']['name']}", path) in locations
    assert any(reason in detail.reason for detail in error.details)
    assert error.kind is Kind.INVALID


async def test_conflicting_profiles_of_equal_priority_are_rejected(bed: ServerBed) -> None:
    error = await rejection(bed, profile("rival", component("store", redisHost="b:1")))
    assert (error.kind, error.code) == (Kind.CONFLICT, "layers-conflict")
    assert [(detail.document, detail.path) for detail in error.details] == [
        ("Profile/rival", "spec.resources[0].spec.metadata[redisHost].value")
    ]


async def test_a_duplicate_document_is_rejected(bed: ServerBed) -> None:
    error = await rejection(bed, runtime("r2"), runtime("r2", region="eu"))
    assert error.code == "document-duplicate"


async def test_a_document_both_put_and_deleted_is_rejected(bed: ServerBed) -> None:
    error = await rejection(bed, runtime("r1", a="b"), deletions=(DocumentRef("Runtime", "r1"),))
    assert error.code == "document-duplicate"


async def test_deleting_an_unknown_document_is_rejected(bed: ServerBed) -> None:
    error = await rejection(bed, deletions=(DocumentRef("Profile", "nope"),))
    assert (error.kind, error.details[0].document) == (Kind.NOT_FOUND, "Profile/nope")


async def test_all_problems_are_reported_at_once(bed: ServerBed) -> None:
    broken = profile("p", changed_store(kind="Pod"), changed_store(metadata={"name": "t"}, spec={"type": 1}))
    error = await rejection(bed, broken, runtime("BAD"), {**runtime("r3"), "kind": "Nothing"})
    assert len(error.details) == 4
    assert {detail.document for detail in error.details} == {"Profile/p", "Runtime/BAD", "Nothing/r3"}


async def test_a_large_document_is_rejected(bed: ServerBed) -> None:
    large = profile("big", component("s", redisHost="x" * 2_000_000))
    error = await post(bed, "/changes", msgspec.json.encode({"documents": [large]}))
    assert error.type == "document-large"
    assert "the limit is 1048576" in error.details[0].reason


async def test_a_deep_document_is_rejected(bed: ServerBed) -> None:
    deep: Any = "end"
    for _ in range(100):
        deep = {"a": deep}
    error = await rejection(bed, profile("deep", changed_store(spec=deep)))
    assert error.code == "document-deep"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "json-syntax"),
        (b'{"message": "\xff"}', "json-syntax"),
        (b"[1]", "body-invalid"),
        (b'{"dokuments": []}', "body-invalid"),
        (b'{"documents": [], "documents": []}', "json-duplicate-key"),
        (b'{"documents": [' + b'{"a":' * 100_000, "json-deep"),
        (b'{"message": 1', "json-syntax"),
        (b'{"message": 1}}', "json-syntax"),
        (b"1\xff", "json-syntax"),
        (b'{"message": 1, "documents": ' + b"[" * 100_000, "json-deep"),
        (b'{"message": 1, "documents": [' + b"9" * 5000 + b"]}", "body-invalid"),
        (b'{"documents": [{"a": ' + b"9" * 5000 + b"}]}", "body-invalid"),
        (b'{"message": "' + b"x" * 5000 + b'"}', "message-long"),
    ],
)
async def test_an_invalid_body_is_rejected(bed: ServerBed, body: bytes, code: str) -> None:
    assert (await post(bed, "/changes", body)).type == code


async def test_a_body_over_the_limit_is_rejected(bed: ServerBed) -> None:
    assert (await post(bed, "/changes", b" " * (16 * 1024 * 1024 + 1))).type == "body-large"


async def test_a_dry_run_query_with_a_json_body_is_rejected(bed: ServerBed) -> None:
    body = msgspec.json.encode({"documents": [runtime("r2")]})
    assert (await post(bed, "/changes", body, dryRun="true")).type == "query-unknown"


async def test_an_unknown_media_type_is_rejected(bed: ServerBed) -> None:
    assert (await post(bed, "/changes", b"<a/>", "application/xml")).type == "content-type"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("Content-Encoding", "gzip", "content-encoding"), ("If-Match", '"1"', "if-match-header")],
)
async def test_a_header_that_would_have_no_effect_is_rejected(bed: ServerBed, name: str, value: str, code: str) -> None:
    body = msgspec.json.encode({"documents": [runtime("r2")]})
    assert (await post(bed, "/changes", body, headers={name: value})).type == code


YAML = """\
apiVersion: runtime-governor.dev/v1alpha1
kind: Runtime
metadata: {name: r2}
spec:
  platform: local
---
apiVersion: runtime-governor.dev/v1alpha1
kind: Profile
metadata: {name: own}
spec:
  selector: {runtime: nope}
"""


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (YAML, 11, "unknown runtime"),
        (YAML.replace("local", "moon"), 5, "must be local, kubernetes or cloudfoundry"),
        (YAML.replace("kind: Profile", "kind: Thing"), 8, "unknown kind"),
        (YAML.replace("name: r2}", "name: r2, name: r3}"), 3, "already"),
        (YAML + "  bad: [", 12, "not YAML"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n"
            + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("bcdefghi", "cdefghij", strict=True)),
            8,
            "",
        ),
        ("x" * 2_000_000, 1, "the limit is 1048576"),
    ],
    ids=["unknown-runtime", "wrong-value", "unknown-kind", "duplicate-key", "syntax", "alias-bomb", "large"],
)
async def test_invalid_yaml_text_is_rejected_with_its_line(bed: ServerBed, text: str, line: int, reason: str) -> None:
    found = await post(bed, "/changes", text.encode(), "application/yaml")
    assert found.details[0].file == "request"
    assert found.details[0].line == line
    assert reason in found.details[0].reason


async def test_no_error_contains_a_sensitive_value(bed: ServerBed) -> None:
    documents = [
        profile("a", component("s", redisPassword=f"${{runtime.id}}{CANARY}")),
        profile("b", {**component("s", redisPassword=CANARY), "spec": {"type": 1, "password": CANARY}}),
        profile("c", component("s", redisPassword=CANARY), component("s", redisPassword=CANARY)),
        profile("d", component("store", redisHost="other", redisPassword=CANARY)),
        profile("e", component("s", redisPassword=CANARY, redisHost="${runtime.nope}")),
    ]
    for document in documents:
        error = await rejection(bed, document)
        assert CANARY not in str(error)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/revisions?limit=0", "limit"),
        ("/revisions?limit=many", "not-a-number"),
        ("/revisions?colour=red", "query-unknown"),
        ("/revisions?document=orders", "document-reference"),
        ("/documents?kind=Pod", "kind-unknown"),
        ("/runtimes?state=failed", "state-unknown"),
        ("/documents/Profile/orders?version=99999999999999999999", "number-large"),
        ("/revisions/7", "not-found"),
        ("/changes/c-0", "not-found"),
        ("/runtimes/nope", "not-found"),
        ("/nothing", "not-found"),
        ("/tokens/", "not-found"),
    ],
)
async def test_an_invalid_query_or_path_is_answered_with_its_error_code(bed: ServerBed, path: str, code: str) -> None:
    headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(bed.url + PREFIX + path) as response:
        body = await response.json(content_type="application/problem+json")
    assert body["type"] == code


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/changes", "POST"), ("PATCH", "/tokens", "GET, POST"), ("OPTIONS", "/tokens/a", "DELETE")],
)
async def test_a_wrong_method_is_rejected_with_the_allowed_ones(
    bed: ServerBed, method: str, path: str, allowed: str
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, f"{bed.url}{PREFIX}{path}") as response:
        body = await response.json(content_type="application/problem+json")
    assert (response.status, response.headers["Allow"]) == (405, allowed)
    assert (body["status"], body["type"], body["title"]) == (405, "method-unknown", f"this path allows only {allowed}")
