"""Errors in the logs of sidecars."""

import pytest

from governor.agent.platforms.kubernetes.proof.sidecar_log import errors_in

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
