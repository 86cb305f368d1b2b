"""The Job of a throw-away pod."""

from typing import Any

import pytest

from governor.agent.platforms.kubernetes.preflight.job import job, obstacle
from governor.agent.platforms.kubernetes.workloads.views import PREFLIGHT
from governor.kube.objects import Object

APP = "orders-preflight-1a2b3c4d"


def model(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    containers = [{"name": "app", "image": "app:1"}, {"name": "daprd", "image": "daprd:1"}]
    labels = {"app": "orders", "tier": "web", "pod-template-hash": "abc"}
    metadata = {"name": "orders-0", "namespace": "shop", "labels": labels, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def template(pod: Object, image: str = "daprd:1", labels: tuple[str, ...] = ()) -> Object:
    found = job(pod, APP, "r1", configuration="settings-copy", image=image, labels=labels)
    made: Object = found["spec"]["template"]
    return made


def test_it_is_suspended_and_ends_by_itself() -> None:
    found = job(model(), APP, "r1", configuration="c", image="daprd:1")
    spec = found["spec"]
    assert (spec["suspend"], spec["backoffLimit"]) == (True, 0)
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["ttlSecondsAfterFinished"] == 60
    assert found["metadata"] == {"name": APP, "namespace": "shop", "labels": {PREFLIGHT: "r1"}}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_it_has_no_label_of_the_workload_unless_that_is_chosen() -> None:
    assert template(model())["metadata"]["labels"] == {PREFLIGHT: "r1"}
    assert template(model(), labels=("tier", "absent"))["metadata"]["labels"] == {"tier": "web", PREFLIGHT: "r1"}


def test_its_own_container_runs_no_application_is_restricted_and_never_ready() -> None:
    (container,) = template(model())["spec"]["containers"]
    assert (container["image"], container["command"]) == ("daprd:1", ["/daprd", "--version"])
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["readinessProbe"]["tcpSocket"] == {"port": 1}
    assert container["resources"]["limits"]


def test_annotations_of_the_sidecar_are_carried_and_those_of_the_application_are_not() -> None:
    carried = {
        "dapr.io/env": "A=1",
        "dapr.io/env-from-secret": "B=secret:key",
        "dapr.io/log-level": "debug",
        "dapr.io/sidecar-memory-limit": "1Gi",
    }
    dropped = {
        "dapr.io/app-port": "3000",
        "dapr.io/app-token-secret": "token",
        "dapr.io/enable-app-health-check": "true",
        "dapr.io/unix-domain-socket-path": "/tmp/socket",
        "prometheus.io/scrape": "true",
    }
    replaced = {
        "dapr.io/app-id": "orders",
        "dapr.io/config": "settings",
        "dapr.io/enable-native-sidecar": "true",
        "dapr.io/placement-host-address": "placement:50005",
        "dapr.io/sidecar-image": "daprd:0",
    }
    found = template(model({**carried, **dropped, **replaced}))["metadata"]["annotations"]
    assert carried.items() <= found.items()
    assert not dropped.keys() & found.keys()
    assert {name: found[name] for name in replaced} == {
        "dapr.io/app-id": APP,
        "dapr.io/config": "settings-copy",
        "dapr.io/enable-native-sidecar": "false",
        "dapr.io/placement-host-address": "",
        "dapr.io/sidecar-image": "daprd:1",
    }


def test_the_memory_of_the_sidecar_is_bounded() -> None:
    assert template(model())["metadata"]["annotations"]["dapr.io/sidecar-memory-limit"] == "512Mi"


def test_without_an_image_the_injector_chooses_it() -> None:
    found = template(model({"dapr.io/sidecar-image": "daprd:0"}), image="")
    assert "dapr.io/sidecar-image" not in found["metadata"]["annotations"]


def test_it_runs_where_and_as_the_workload_does() -> None:
    fields: dict[str, Any] = {
        "serviceAccountName": "orders",
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"fsGroup": 1},
    }
    found = template(model(**fields, affinity={"podAntiAffinity": {}}, hostNetwork=True))["spec"]
    assert {name: found[name] for name in fields} == fields
    assert not {"affinity", "hostNetwork"} & found.keys()


def test_only_volumes_that_the_sidecar_mounts_are_carried() -> None:
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}, {"name": "data", "emptyDir": {}}]
    pod = model({"dapr.io/volume-mounts": "keys:/keys"}, volumes=volumes)
    assert template(pod)["spec"]["volumes"] == volumes[:1]
    assert obstacle(pod) == ""


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            model(
                {"dapr.io/volume-mounts-rw": "data:/data"},
                volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            ),
            "its sidecars mount the volume 'data' of a PersistentVolumeClaim",
        ),
        (model({"dapr.io/pluggable-components": "mystore"}), "pluggable components"),
        (model({"dapr.io/inject-pluggable-components": "true"}), "pluggable components"),
    ],
    ids=["claim", "pluggable", "injected"],
)
def test_some_pods_cannot_be_imitated(pod: Object, text: str) -> None:
    assert text in obstacle(pod)
