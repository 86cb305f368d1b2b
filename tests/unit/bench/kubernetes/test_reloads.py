"""The rounds of `make bench-kubernetes`."""

from collections import Counter

from bench.kubernetes.reloads import turns


def test_each_method_goes_first_as_often_with_each_store() -> None:
    planned = list(turns(8, ("ours", "theirs")))

    assert [store for store, _ in planned] == [0, 1] * 4
    assert all(sorted(names) == ["ours", "theirs"] for _, names in planned)
    assert set(Counter((store, names[0]) for store, names in planned).values()) == {2}
