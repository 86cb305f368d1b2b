"""The mapping between error kinds and gRPC status codes."""

from governor.errors import Kind
from governor.runtimeproxy.grpc.status_codes import CODE, kind_of, name_of


def test_every_kind_maps_to_an_error_code() -> None:
    assert CODE.keys() == set(Kind)
    assert all(0 < code <= 16 for code in CODE.values())


def test_a_plugins_status_reaches_kubelet_unchanged_except_where_it_would_mislead() -> None:
    forwarded = {code: CODE[kind_of(code)] for code in range(1, 17)}

    assert {code for code, sent in forwarded.items() if code != sent} == {1, 2, 4, 11, 12, 15}
    assert kind_of(99) is Kind.INTERNAL


def test_an_unknown_status_is_its_own_name() -> None:
    statuses = (b"", b"0", b"16", b"17", b"-1", "²".encode(), b"9" * 5000)

    assert [name_of(each) for each in statuses] == ["", "OK", "UNAUTHENTICATED", "17", "-1", "²", "9" * 5000]
