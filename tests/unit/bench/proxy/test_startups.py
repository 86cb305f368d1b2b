"""The table of pods started through kubelet."""

from bench.proxy.startups import Startup, table


def test_what_a_proxy_adds_is_computed_within_each_round() -> None:
    found = {
        "direct": [[Startup(0.5, 1.0), Startup(0.6, 1.2), Startup(9.0, 9.0)], [Startup(0.7, 1.3)]],
        "ours": [[Startup(0.62, 1.25)], [Startup(0.71, 1.2)]],
    }

    assert list(table(found)) == [
        "| a pod's start through kubelet, ms | direct | ours |",
        "|---|---|---|",
        "| until its container runs | takes 650 | +15.0 (10.0 to 20.0) |",
        "| until it is ready | takes 1250 | -25 (-100 to 50) |",
    ]
