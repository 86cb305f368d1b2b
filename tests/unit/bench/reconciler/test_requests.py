"""How `make bench-reconciler` counts the requests of an API server."""

from bench.reconciler.requests import parse


def line(verb: str, resource: str, count: int, *, group: str = "", code: int = 200, dry_run: str = "") -> str:
    labels = {"code": code, "dry_run": dry_run, "group": group, "resource": resource, "verb": verb}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"apiserver_request_total{{{text}}} {count}"


BEFORE = "\n".join(
    [
        "# TYPE apiserver_request_total counter",
        line("APPLY", "configmaps", 3),
        line("LIST", "configmaps", 1),
        line("PUT", "leases", 10, group="coordination.k8s.io"),
        'apiserver_request_terminations_total{verb="APPLY"} 7',
    ]
)
AFTER = "\n".join(
    [
        line("APPLY", "configmaps", 5),
        line("APPLY", "configmaps", 4, dry_run="All"),
        line("POST", "roles", 1, group="rbac.authorization.k8s.io", code=409),
        line("LIST", "configmaps", 3),
        line("WATCH", "configmaps", 2),
        line("PUT", "leases", 20, group="coordination.k8s.io"),
        line("GET", "", 9),
    ]
)


def test_leases_dry_runs_and_reads_are_no_writes() -> None:
    received = parse(AFTER).since(parse(BEFORE))

    assert received.writes == {"APPLY configmaps": 2, "POST roles.rbac.authorization.k8s.io (409)": 1}
    assert received.lists == {"configmaps": 2}
    assert received.total == 2 + 1 + 2 + 2


def test_nothing_received_is_nothing_counted() -> None:
    received = parse(AFTER).since(parse(AFTER))

    assert (received.writes, received.lists, received.total) == ({}, {}, 0)
