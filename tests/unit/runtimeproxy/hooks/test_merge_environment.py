"""Merging of changes to a container's environment."""

from typing import Any

import pytest

from governor.errors import GovernorError
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.values.secret import Secret
from tests.unit.runtimeproxy.hooks.requests import (
    VARIABLES,
    change_texts,
    creation,
    echoed,
    environment_response,
    sent_container,
    variables_of,
)
from tests.unit.runtimeproxy.hooks.strategies import add


def test_d12_variables_keep_their_order_and_duplicates() -> None:
    start = creation(envs=VARIABLES)
    assert dict(sent_container(start).container_envs) == {"A": "2", "B": "3", "C": ""}
    assert variables_of(add(start, "plugin", echoed(start, cpu_shares=2))) == VARIABLES
    assert variables_of(add(start, "plugin", environment_response(Z="9", B="4"))) == [
        ("B", b"1"),
        ("A", b"2"),
        ("B", b"4"),
        ("KEY", b"\xff\xfe"),
        ("C", b""),
        ("Z", b"9"),
    ]


def test_d24_variables_that_are_not_utf8_are_not_sent_to_plugins_and_are_kept() -> None:
    start = creation(envs=VARIABLES)
    assert "KEY" not in sent_container(start).container_envs
    assert ("KEY", b"\xff\xfe") in variables_of(add(start, "plugin", environment_response(A="2", B="3")))


def test_a_plugin_may_set_a_variable_that_it_was_not_sent() -> None:
    assert ("KEY", b"known") in variables_of(add(creation(envs=VARIABLES), "plugin", environment_response(KEY="known")))


def test_a_plugin_that_replaces_the_environment_removes_variables_with_their_duplicates() -> None:
    end = add(creation(envs=VARIABLES), "plugin", environment_response(A="2", C=""), replace_environment=True)
    assert variables_of(end) == [("A", b"2"), ("KEY", b"\xff\xfe"), ("C", b"")]
    assert change_texts(end) == ["plugin changed container_envs.B from *** to None"]


@pytest.mark.parametrize(
    "response",
    [
        environment_response(),
        environment_response(A="2"),
        environment_response(NEW="1"),
        environment_response(A="5", B="6"),
        environment_response(A="2", B="3"),
    ],
)
def test_a_plugin_that_does_not_replace_the_environment_removes_no_variable(response: Any) -> None:
    names = {key for key, _ in variables_of(add(creation(envs=VARIABLES), "plugin", response))}
    assert names >= {"A", "B", "C", "KEY"}


def test_an_empty_environment_replaces_nothing() -> None:
    end = add(creation(envs=VARIABLES), "plugin", environment_response(), replace_environment=True)
    assert variables_of(end) == VARIABLES


def test_variables_that_were_not_sent_to_a_plugin_are_not_removed() -> None:
    """Their values are not UTF-8."""
    end = add(creation(envs=VARIABLES), "plugin", environment_response(NEW="1"), replace_environment=True)
    assert variables_of(end) == [("KEY", b"\xff\xfe"), ("NEW", b"1")]


def test_d19_values_of_variables_are_masked_wherever_a_change_is_printed() -> None:
    first = add(
        creation(envs=[("PASSWORD", b"hunter2"), ("TOKEN", b"hunter3")]),
        "one",
        environment_response(PASSWORD="hunter4", TOKEN="hunter3"),
    )
    end = add(first, "other", environment_response(PASSWORD="hunter5", TOKEN="hunter3"))
    with pytest.raises(GovernorError) as caught:
        add(first, "other", environment_response(PASSWORD="hunter5"), ConflictPolicy.REFUSE)
    printed = repr((end.changes, end.applied, end.conflicts)) + str(caught.value) + str(end.conflicts[0])
    assert "hunter" not in printed
    assert "PASSWORD" in printed
    assert end.changes[0].new == Secret("hunter5")
