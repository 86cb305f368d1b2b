"""The table between our errors and gRPC's status codes."""

from governor.errors import Kind
from governor.runtimeproxy.grpc.status_codes import CODE, kind_of, name_of


def test_every_kind_has_a_code_that_is_an_error() -> None:
    assert CODE.keys() == set(Kind)
    assert all(0 < code <= 16 for code in CODE.values())


def test_a_plugins_status_reaches_kubelet_as_it_is_except_where_it_would_mislead() -> None:
    passed = {code: CODE[kind_of(code)] for code in range(1, 17)}

    assert {code for code, told in passed.items() if code != told} == {1, 2, 4, 11, 12, 15}
    assert kind_of(99) is Kind.INTERNAL


def test_a_status_that_is_none_has_itself_for_a_name() -> None:
    given = (b"", b"0", b"16", b"17", b"-1", "²".encode(), b"9" * 5000)

    assert [name_of(each) for each in given] == ["", "OK", "UNAUTHENTICATED", "17", "-1", "²", "9" * 5000]
