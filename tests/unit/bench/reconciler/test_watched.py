"""How `make bench-reconciler` knows which releases are complete."""

import msgspec

from bench.reconciler.watched import OBJECTS, ChartObject, Tally
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Added, Changed, Removed

REF = ObjectRef("", "ConfigMap", "bench", "any")


def chart_object(release: str, revision: str) -> ChartObject:
    labels = {"app.kubernetes.io/instance": release, "bench/revision": revision}
    return msgspec.convert({"metadata": {"name": "any", "labels": labels}}, ChartObject)


def test_a_release_is_complete_when_all_its_objects_have_the_revision() -> None:
    tally = Tally()
    old, new, other = chart_object("a", "first"), chart_object("a", "second"), chart_object("b", "first")
    for _ in range(OBJECTS):
        tally.receive(Added(REF, old))
    tally.receive(Added(REF, other))
    assert (tally.complete("first"), tally.complete("second")) == (frozenset({"a"}), frozenset())
    assert len(tally) == OBJECTS + 1

    for _ in range(OBJECTS - 1):
        tally.receive(Changed(REF, old, new))
    assert (tally.complete("first"), tally.complete("second")) == (frozenset(), frozenset())
    assert (tally.total("first"), tally.total("second")) == (2, OBJECTS - 1)

    tally.receive(Changed(REF, old, new))
    assert tally.complete("second") == {"a"}

    tally.receive(Removed(REF, new))
    assert (tally.complete("second"), len(tally)) == (frozenset(), OBJECTS)
