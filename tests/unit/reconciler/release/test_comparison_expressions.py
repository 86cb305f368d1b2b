"""CEL expressions for admission policies; what they mean is tested on a real API server."""

import pytest

from governor.kube.applyset import IgnoredFields
from governor.reconciler.release.comparison_expressions import exemptions, unchanged

A, B = 'object[?"data"]', 'oldObject[?"data"]'


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((), f"{A} == {B}"),
        ((IgnoredFields(("spec.replicas",)),), f"{A} == {B}"),
        ((IgnoredFields(("data",)),), "true"),
        ((IgnoredFields(("data",), kind="Secret"),), f'(request.kind.kind == "Secret" || {A} == {B})'),
        ((IgnoredFields(('data["*"].a',)),), "true"),
        ((IgnoredFields(("data[0].a",), group="apps"),), f'(request.kind.group == "apps" || {A} == {B})'),
    ],
)
def test_fields_that_are_ignored_as_a_whole(rules: tuple[IgnoredFields, ...], expected: str) -> None:
    assert unchanged("data", exemptions(rules)) == expected


def test_a_key_is_skipped_only_for_objects_of_its_rule() -> None:
    rule = IgnoredFields(('data["x-*"]',), kind="ConfigMap", namespace="shop", name="a*")
    expression = unchanged("data", exemptions([rule]))
    guard = 'request.kind.kind == "ConfigMap" && request.namespace == "shop" && request.name.matches("^a.*$")'
    assert f'(k0.matches("^x\\\\-.*$") && {guard})' in expression
    assert expression.count(".all(k0,") == 2


def test_deep_paths_compare_each_level_once() -> None:
    expression = unchanged("spec", exemptions([IgnoredFields(("spec.a.b.c", "spec.a.b.d", "spec.a.e"))]))
    assert expression.count(".all(k0,") == expression.count(".all(k1,") == expression.count(".all(k2,") == 2
    assert 'object[?"spec"][?"a"][?"b"].orValue({})' in expression
