"""Facts about pods and sidecars."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.workloads.pods import pod_of
from governor.agent.platforms.kubernetes.workloads.views import has_dapr, is_true
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod
from governor.domain.reports import WorkloadRef
from governor.kube.objects import Object
from tests.unit.agent.platforms.kubernetes.manifests import IMAGE, args, daprd, pod, status, view

OWNER = WorkloadRef("shop", "Deployment", "orders")


def facts(manifest: Object) -> Pod:
    return pod_of(view(manifest), OWNER)


def sidecar(manifest: Object) -> Container:
    found = facts(manifest).sidecar
    assert found
    return found


@pytest.mark.parametrize("value", ["true", "True", " yes ", "y", "on", "T", "1"])
def test_annotations_that_dapr_reads_as_true(value: str) -> None:
    assert is_true(value)


@pytest.mark.parametrize("value", ["false", "", "enabled", "0", "2"])
def test_annotations_that_dapr_reads_as_false(value: str) -> None:
    assert not is_true(value)


def test_a_pod_with_the_label_or_the_annotation_has_dapr() -> None:
    plain = pod("a", sidecar={}, annotations={"dapr.io/enabled": "false"})
    assert not has_dapr(view(plain))
    assert has_dapr(view(pod("a", annotations={"dapr.io/enabled": "false"})))
    assert has_dapr(view(pod("a", sidecar={})))


@pytest.mark.parametrize(
    ("arguments", "is_seen"),
    [
        (args("orders"), True),
        (["--app-id=orders", "--mode=kubernetes"], True),
        (["--app-id", "orders", "--resources-path", "/components"], False),
    ],
)
def test_a_sidecar_is_seen_without_its_label_if_it_loads_from_the_cluster(arguments: list[str], is_seen: bool) -> None:
    unlabelled = pod("a", sidecar=daprd(arguments), annotations={"dapr.io/enabled": "false"})
    unlabelled["metadata"]["labels"] = {}
    assert has_dapr(view(unlabelled)) is is_seen


def test_an_injected_pod_that_has_not_started() -> None:
    manifest = pod("orders-1", annotations={"dapr.io/app-id": "orders", "runtime-governor.dev/restart": "abc"})
    assert facts(manifest) == Pod(
        namespace="shop",
        name="orders-1",
        uid="uid-orders-1",
        created=datetime(2026, 8, 1, 10, tzinfo=UTC),
        app_id="orders",
        owner=OWNER,
        restart_digest="abc",
        sidecar=Container(image=IMAGE),
    )
    assert facts(manifest).instance == ""


def test_a_running_sidecar() -> None:
    running = {"running": {"startedAt": "2026-08-01T10:00:05Z"}}
    manifest = pod("orders-1") | {"status": status(containerID="containerd://1", state=running)}
    found = facts(manifest)
    assert (found.ip, found.phase, found.ready, found.finished) == ("10.1.2.3", "Running", True, False)
    assert found.sidecar == Container(
        image=IMAGE, id="containerd://1", started=datetime(2026, 8, 1, 10, 0, 5, tzinfo=UTC), ready=True
    )
    assert found.instance == "uid-orders-1/containerd://1"


def test_a_crash_loop_shows_the_last_exit() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "cannot load state.redis\n", "startedAt": None}
    daprd_status: Any = {
        "ready": False,
        "restartCount": 3,
        "containerID": "containerd://4",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }
    assert sidecar(pod("a") | {"status": status(**daprd_status)}) == Container(
        image=IMAGE,
        id="containerd://4",
        restarts=3,
        waiting="CrashLoopBackOff",
        waiting_message="back-off 40s",
        last_exit="Error, exit code 1: cannot load state.redis",
    )


@pytest.mark.parametrize(
    ("terminated", "killed"),
    [
        ({"exitCode": 0, "reason": "Completed"}, False),
        ({"exitCode": 1, "reason": "Error"}, False),
        ({"exitCode": 255, "reason": "Error"}, False),
        ({"exitCode": 137, "reason": "Error"}, True),
        ({"exitCode": 143, "reason": "Error"}, True),
        ({"exitCode": 0, "signal": 9}, True),
        ({"exitCode": 1, "reason": "OOMKilled"}, True),
    ],
)
def test_an_exit_by_a_signal_is_known(terminated: Object, killed: bool) -> None:
    now = sidecar(pod("a") | {"status": status(ready=False, state={"terminated": terminated})})
    running = {"running": {"startedAt": "2026-08-01T10:00:05Z"}}
    again = status(restartCount=1, state=running, lastState={"terminated": terminated})
    assert (now.killed, now.exits) == (killed, 1)
    recovered = sidecar(pod("a") | {"status": again})
    assert (recovered.killed, recovered.exits) == (killed, 1)


@pytest.mark.parametrize(
    ("terminated", "waiting", "last_exit"),
    [
        ({"exitCode": 0, "reason": "Completed"}, "Completed", "Completed, exit code 0"),
        ({"exitCode": 137}, "Terminated", "exit code 137"),
    ],
)
def test_a_sidecar_that_has_just_ended(terminated: Object, waiting: str, last_exit: str) -> None:
    found = sidecar(pod("a") | {"status": status(ready=False, state={"terminated": terminated})})
    assert (found.waiting, found.last_exit, found.started) == (waiting, last_exit, None)


def test_a_native_sidecar_is_an_init_container_that_keeps_running() -> None:
    manifest = pod("a", sidecar={}, labels={"dapr.io/sidecar-injected": "true"})
    manifest["spec"]["initContainers"] = [{"name": "setup"}, daprd(args("orders"), restartPolicy="Always")]
    statuses = status()
    statuses["initContainerStatuses"] = [statuses["containerStatuses"].pop() | {"containerID": "containerd://9"}]
    found = sidecar(manifest | {"status": statuses})
    assert (found.native, found.id, found.ready) == (True, "containerd://9", True)


def test_a_pod_without_a_sidecar_is_described_by_its_annotations() -> None:
    found = facts(pod("a", sidecar={}, annotations={"dapr.io/app-id": "orders", "dapr.io/config": "calm"}))
    assert (found.app_id, found.configuration, found.sidecar, found.instance) == ("orders", "calm", None, "")


def test_the_default_app_id_is_the_name_of_the_pod() -> None:
    assert facts(pod("a", sidecar={})).app_id == "a"
    assert facts(pod("a", sidecar=daprd([]))).app_id == "a"


def test_annotations_that_were_edited_later_do_not_describe_the_sidecar() -> None:
    edited = {"dapr.io/config": "other", "dapr.io/app-id": "other", "dapr.io/metrics-port": "1"}
    found = facts(pod("a", sidecar=daprd(args("orders", "--config", "calm,ignored")), annotations=edited))
    assert (found.app_id, found.configuration) == ("orders", "calm")
    assert facts(pod("a", annotations=edited)).configuration == ""


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        (["--dapr-public-port", "3501", "--enable-metrics", "--metrics-port", "9191"], (3501, 9191)),
        (["--dapr-public-port=4000", "-enable-metrics=true"], (4000, 9090)),
        (["--dapr-public-port", "3501", "--enable-metrics=false", "--metrics-port", "9191"], (3501, 0)),
        (["--dapr-public-port", "3501"], (3501, 0)),
        (["--dapr-public-port", "none", "--enable-metrics", "--metrics-port", "99999"], (0, 0)),
        (["exec", "/daprd", "--", "--dapr-public-port", "3501", "--enable-metrics"], (3501, 9090)),
        ([], (0, 0)),
    ],
)
def test_the_ports_are_those_of_the_command_line(arguments: list[str], ports: tuple[int, int]) -> None:
    found = sidecar(pod("a", sidecar=daprd(arguments)))
    assert (found.public_port, found.metrics_port) == ports


def test_the_view_holds_nothing_of_the_application() -> None:
    held = msgspec.to_builtins(view(pod("a") | {"status": status()}))
    assert [each["name"] for each in held["spec"]["containers"]] == ["daprd"]
    assert [each["name"] for each in held["status"]["containerStatuses"]] == ["daprd"]
    assert "hidden" not in str(held)


@pytest.mark.parametrize(("phase", "finished"), [("Succeeded", True), ("Failed", True), ("Pending", False)])
def test_a_pod_is_finished_when_its_containers_have_ended_for_good(phase: str, finished: bool) -> None:
    assert facts(pod("a", deletionTimestamp="2026-08-01T11:00:00Z")).deleting
    assert facts(pod("a") | {"status": {"phase": phase}}).finished is finished
