"""Errors in the logs of sidecars."""

import pytest
from aiohttp import web

from governor.agent.platforms.kubernetes.proof.sidecar_log import errors_in, read_exit_errors
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod
from governor.domain.reports import WorkloadRef
from governor.kube.client import Transport
from tests.unit.agent.platforms.kubernetes.bed import NOW
from tests.unit.kube.http_bed import HttpServer, failure

FATAL = 'time="2026-11-18T01:30:33Z" level=fatal msg="process component \\"store\\" error: refused" app_id=orders'


@pytest.mark.parametrize(
    ("log", "errors"),
    [
        ("", ()),
        ('time="x" level=info msg="loaded"', ()),
        (FATAL, ('process component "store" error: refused',)),
        ("level=error msg=short rest", ("short",)),
        ('{"level":"fatal","msg":"no store"}', ("no store",)),
        ('{"level":"fatal","msg":', ()),
        ("a panic without a level", ()),
    ],
)
def test_errors_are_read_from_text_and_json(log: str, errors: tuple[str, ...]) -> None:
    assert errors_in(log) == errors


def test_a_long_error_is_cut() -> None:
    [error] = errors_in(f'level=error msg="{"x" * 99_999}"')

    assert len(error) == 2000


def test_only_the_last_errors_are_kept() -> None:
    log = "\n".join(f'level=error msg="error {number}"' for number in range(20))

    assert errors_in(log) == tuple(f"error {number}" for number in range(15, 20))


EXITED = Container("daprd", last_exit="Error, exit code 1", waiting="CrashLoopBackOff")
RUNNING = Container("daprd", started=NOW, restarts=1, last_exit="Error, exit code 1")
STARTED = web.Response(body=b'level=info msg="starting"')
FAILED = web.Response(body=b'level=fatal msg="no store"')
GONE = web.Response(status=400, body=failure(400, "BadRequest"))


@pytest.mark.parametrize(
    ("sidecar", "answers", "errors", "previous"),
    [
        (EXITED, [FAILED], ("no store",), [False]),
        (RUNNING, [FAILED], ("no store",), [True]),
        (EXITED, [STARTED, FAILED], ("no store",), [False, True]),  # started again since its pod was observed
        (EXITED, [STARTED, GONE], (), [False, True]),
        (EXITED, [GONE], (), [False]),
        (RUNNING, [GONE], (), [True]),
    ],
)
async def test_the_errors_of_a_sidecar_that_exited_are_those_of_the_container_that_did(
    sidecar: Container, answers: list[web.Response], errors: tuple[str, ...], previous: list[bool]
) -> None:
    owner = WorkloadRef("shop", "Deployment", "orders")
    pod = Pod("shop", "orders-1", "1", NOW, "orders", owner, sidecar=sidecar)
    async with Transport() as transport, HttpServer(*answers) as server:
        assert await read_exit_errors(server.client(transport), pod) == errors
        assert ["previous" in each.query for each in server.requests] == previous
