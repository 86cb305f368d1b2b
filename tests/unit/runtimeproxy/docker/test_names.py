"""Kubernetes' pods and containers in cri-dockerd's names and labels."""

import pytest

from governor.runtimeproxy.docker.names import KubernetesName, annotations, kubernetes_name, pod_labels
from governor.wire.hooks.workload import PodIdentity

LABELS = {
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "u-1",
}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("/k8s_app_web_shop_u-1_2", {}, KubernetesName("app", 2, PodIdentity("web", "u-1", "shop"))),
        ("k8s_app_web_shop_u-1_2_3f9a", {}, KubernetesName("app", 2, PodIdentity("web", "u-1", "shop"))),
        ("k8s_POD_web_shop_u-1_3", {}, KubernetesName("", 3, PodIdentity("web", "u-1", "shop", 3))),
        (
            "k8s_POD_web_shop_u-1_3",
            {"io.kubernetes.docker.type": "podsandbox"},
            KubernetesName("", 3, PodIdentity("web", "u-1", "shop", 3)),
        ),
        (
            "renamed",
            {**LABELS, "io.kubernetes.docker.type": "container", "io.kubernetes.container.name": "app"},
            KubernetesName("app", 0, PodIdentity("web", "u-1", "shop")),
        ),
        (
            "k8s_x_y_z_u_1",
            {**LABELS, "io.kubernetes.container.name": "app", "io.kubernetes.sandbox.id": "s"},
            KubernetesName("app", 1, PodIdentity("web", "u-1", "shop"), "s"),
        ),
        ("k8s_app_web_shop_u-1", {}, None),
        ("k8s_app_web_shop_u-1_2_a_b", {}, None),
        ("k8s_app_web_shop_u-1_x", {}, None),
        ("k8s_app__shop_u-1_0", {}, None),
        ("", {}, None),
        ("postgres", {"com.docker.compose.project": "x"}, None),
        ("x", {"io.kubernetes.docker.type": "podsandbox"}, None),
        ("x", LABELS, None),
    ],
)
def test_a_name(name: str, labels: dict[str, str], expected: KubernetesName | None) -> None:
    assert kubernetes_name(name, labels) == expected


def test_labels_are_divided_into_those_of_the_pod_and_annotations() -> None:
    labels = {**LABELS, "app": "x", "annotation.a": "1", "io.kubernetes.docker.type": "container"}
    labels |= {"io.kubernetes.sandbox.id": "s", "io.kubernetes.container.logpath": "/x"}

    assert pod_labels(labels) == {**LABELS, "app": "x"}
    assert annotations(labels) == {"a": "1"}
