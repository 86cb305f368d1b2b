"""The table of `make bench-reconciler`."""

import msgspec

from bench.reconciler.report import details, table
from tests.unit.bench.reconciler.samples import OURS, PEER


def cells(*lines: str) -> dict[str, list[str]]:
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {first: others for first, *others in split}


def test_each_figure_stands_beside_the_recorded_one_and_its_aim() -> None:
    shown = cells(*table(OURS, None, "linked"))

    assert shown["1,000 modules of 7 objects"] == ["governor", "Flux's helm-controller", "aim"]
    assert shown["s to install all"] == ["45.0", "279.0", "60: met"]
    assert shown["s to change one value in all"] == ["61.0", "446.0", "60: missed"]
    assert shown["install: CPU s"] == ["23.0", "269.0", ""]
    assert shown["install: MiB at most"] == ["150", "225", "225: met"]
    assert shown["idle: % of a core"] == ["0.10", "0.20", "0.2: met"]
    assert shown["idle: writes"] == ["0", "", "0: met"]
    assert shown["restart: writes"] == ["1", "", "0: missed"]
    assert shown["restart: list requests per resource, most"] == ["5", "", ""]


def test_helm_itself_has_more_time() -> None:
    assert cells(*table(OURS, None, "helm"))["s to change one value in all"][-1] == "90: met"


def test_figures_of_a_peer_that_are_not_known_are_empty() -> None:
    shown = cells(*table(OURS, PEER, "linked"))

    assert shown["1,000 modules of 7 objects"][:2] == ["governor", "peer"]
    assert shown["s to install all"][:2] == ["45.0", "300.0"]
    assert shown["install: CPU s"][:2] == ["23.0", ""]
    assert shown["install: requests per module"][:2] == ["12.0", "30.0"]
    assert shown["restart: writes"][:2] == ["1", ""]


def test_fewer_modules_have_neither_aims_nor_recorded_figures() -> None:
    shown = cells(*table(msgspec.structs.replace(OURS, modules=10), None, "linked"))

    assert shown["10 modules of 7 objects"] == ["governor"]
    assert shown["s to install all"] == ["45.0"]


def test_unexpected_requests_are_named() -> None:
    assert list(details(OURS)) == [
        "Written in 30 s without a change: nothing.",
        "Written after the restart: 1 POST clusters (409).",
        "Listed after the restart: 5 configmaps, 3 secrets.",
    ]
