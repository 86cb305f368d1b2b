"""Which renderings are shared, and which never."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.reconciler.render.cache import RenderCache
from governor.reconciler.render.request import Capabilities, Document, Layer, LookupCall, Reads, Rendered, Request
from governor.values.secret import Secret

NOTHING = Reads(kube_version=False, all_api_versions=False)
REQUEST = Request(Path("/a"), "sha256:a", "release", "apps", (Layer(Secret("a: 1")),), Capabilities("v1.30.0", ("v1",)))
RENDERED = Rendered((), (Document("a.yaml", {"kind": "A"}),), (), reads=NOTHING)
replace = msgspec.structs.replace


def cached(request: Request, rendered: Rendered = RENDERED) -> RenderCache:
    cache = RenderCache()
    cache.put(request, rendered)
    return cache


OTHERS: dict[str, dict[str, Any]] = {
    "another chart": {"chart_digest": "sha256:b"},
    "another release": {"release_name": "other"},
    "another namespace": {"namespace": "other"},
    "an upgrade": {"is_upgrade": True},
    "other values": {"values": (Layer(Secret("a: 2")),)},
    "other layers": {"values": (Layer(Secret("a: ")), Layer(Secret("1")))},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_rendering_is_shared_only_by_equal_requests(case: str) -> None:
    cache = cached(REQUEST)
    assert cache.get(replace(REQUEST, chart=Path("/elsewhere"))) == RENDERED
    assert cache.get(replace(REQUEST, **OTHERS[case])) is None


READS = [
    (NOTHING, Capabilities("v1.31.0", ()), True),
    (Reads(True, False), Capabilities("v1.30.0", ("b",)), True),
    (Reads(True, False), Capabilities("v1.31.0", ("v1",)), False),
    (Reads(False, True), Capabilities("v1.31.0", ("v1",)), True),
    (Reads(False, True), Capabilities("v1.30.0", ("v1", "b")), False),
    (Reads(False, False, ("v1", "c")), Capabilities("v1.31.0", ("v1", "b")), True),
    (Reads(False, False, ("v1", "c")), Capabilities("v1.30.0", ("v1", "c")), False),
    (Reads(False, False, ("v1",)), Capabilities("v1.30.0", None), False),
]


@pytest.mark.parametrize(("reads", "capabilities", "is_shared"), READS)
def test_only_capabilities_that_were_read_count(reads: Reads, capabilities: Capabilities, is_shared: bool) -> None:
    rendered = replace(RENDERED, reads=reads)
    found = cached(REQUEST, rendered).get(replace(REQUEST, capabilities=capabilities))
    assert found == (rendered if is_shared else None)


NEVER: dict[str, tuple[Request, Rendered]] = {
    "sensitive values": (replace(REQUEST, values=(Layer(Secret("a: 1"), is_sensitive=True),)), RENDERED),
    "generated values": (REQUEST, replace(RENDERED, recording=Secret("{}"))),
    "replayed values": (replace(REQUEST, recording=Secret("{}")), RENDERED),
    "lookups": (REQUEST, replace(RENDERED, lookups=(LookupCall("v1", "Pod", "", ""),))),
}


@pytest.mark.parametrize("case", NEVER)
def test_what_depends_on_more_is_never_cached(case: str) -> None:
    request, rendered = NEVER[case]
    cache = cached(request, rendered)
    assert cache.get(request) is None
    assert cache.bytes == 0


def test_the_cache_drops_what_was_used_least_recently() -> None:
    size = cached(REQUEST).bytes
    cache = RenderCache(max_bytes=2 * size)
    first, second, third = (replace(REQUEST, release_name=name) for name in "abc")
    cache.put(first, RENDERED)
    cache.put(second, RENDERED)
    assert cache.get(first) == RENDERED
    cache.put(third, RENDERED)
    cache.put(third, RENDERED)
    assert [cache.get(each) is not None for each in (first, second, third)] == [True, False, True]
    assert cache.bytes == 2 * size
    cache.put(first, replace(RENDERED, objects=RENDERED.objects * 100))
    assert cache.bytes <= 2 * size
