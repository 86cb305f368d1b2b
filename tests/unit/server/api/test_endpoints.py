"""Access by endpoint, and the OpenAPI document of the table."""

import pytest

from governor.domain.roles import Role
from governor.errors import GovernorError
from governor.server.api.endpoints import Access, check_access
from governor.server.api.openapi import document
from governor.server.api.routes import ENDPOINTS
from governor.server.identity.known_credentials import Principal

PEOPLE = {role: Principal(role, "token", role=role) for role in Role}
SELF = Principal("runtime r1", "key", runtime="r1")

ALLOWED = {
    Access.SELF: {"r1"},
    Access.VIEWER_OR_SELF: {"r1", Role.VIEWER, Role.EDITOR, Role.ADMIN},
    Access.VIEWER: {Role.VIEWER, Role.EDITOR, Role.ADMIN},
    Access.EDITOR: {Role.EDITOR, Role.ADMIN},
    Access.ADMIN: {Role.ADMIN},
    Access.LEGACY: {"r1", Role.VIEWER, Role.EDITOR, Role.ADMIN},
}


@pytest.mark.parametrize("access", [access for access in Access if access is not Access.PUBLIC])
def test_each_access_level_admits_exactly_its_principals(access: Access) -> None:
    admitted = set()
    for name, principal in [*PEOPLE.items(), ("r1", SELF)]:
        try:
            check_access(access, principal, "r1")
        except GovernorError:
            continue
        admitted.add(name)
    assert admitted == ALLOWED[access]


@pytest.mark.parametrize("access", [access for access in Access if access is not Access.PUBLIC])
@pytest.mark.parametrize("runtime", ["r2", None])
def test_a_runtime_has_no_access_to_another(access: Access, runtime: str | None) -> None:
    if access is Access.LEGACY and runtime is None:
        check_access(access, SELF, runtime)  # the list, which shows a runtime only itself
        return
    with pytest.raises(GovernorError):
        check_access(access, SELF, runtime)


def test_only_enrolment_and_openapi_are_public() -> None:
    public = {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.PUBLIC}
    assert public == {"/enrol", "/openapi.json"}


def test_only_the_legacy_api_is_at_the_root() -> None:
    without_prefix = {endpoint.path for endpoint in ENDPOINTS if not endpoint.prefix}
    assert without_prefix == {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.LEGACY}


def test_only_the_runtime_itself_may_watch_fetch_report_and_send_its_inventory() -> None:
    paths = {endpoint.path for endpoint in ENDPOINTS if endpoint.access is Access.SELF}
    assert paths == {
        "/runtimes/{runtime}/watch",
        "/runtimes/{runtime}/bundles/{sequence}",
        "/runtimes/{runtime}/reports",
        "/runtimes/{runtime}/checks",
        "/runtimes/{runtime}/inventory",
    }


def test_the_openapi_document_has_every_endpoint_once() -> None:
    generated = document(ENDPOINTS)
    operations = [operation for methods in generated["paths"].values() for operation in methods.values()]
    assert len(operations) == len(ENDPOINTS)
    assert len({operation["operationId"] for operation in operations}) == len(ENDPOINTS)
    assert set(generated["paths"]) == {endpoint.route for endpoint in ENDPOINTS}
