"""Dapr's control plane: whether it is fit for a restart, what new pods get, and whether its watchdog runs."""

from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.restarts.control_plane import (
    INJECTOR,
    PLACEMENT,
    SERVICES,
    Component,
    ControlPlane,
    SecretKey,
    Service,
    component_of,
    dapr_obstacle,
    service_of,
)
from governor.kube.objects import Object

OPERATOR = "dapr-operator"


def deployment(name: str, **container: Any) -> Object:
    """Return a Deployment whose first container is not Dapr's."""
    containers = [{"name": "proxy", "args": ["--port", "1"]}, {"name": name, **container}]
    return {
        "metadata": {"namespace": "dapr-system", "labels": {"app": name}, "uid": "u1", "generation": 1},
        "spec": {"replicas": 1, "template": {"spec": {"containers": containers}}},
        "status": {
            "availableReplicas": 1,
            "conditions": [{"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    }


def control_plane(*manifests: Object) -> ControlPlane:
    return ControlPlane(tuple(map(service_of, manifests)))


class TestWatchdog:
    @pytest.mark.parametrize(
        ("args", "interval"),
        [
            ([], ""),
            (["--watch-interval", "0"], ""),
            (["--watch-interval", "2m", "--max-pod-restarts-per-minute", "20"], "2m"),
            (["--watch-interval=30s"], "30s"),
            (["-watch-interval=Once"], ""),
            (["--watch-interval", "False"], ""),
            (["exec", "/operator", "--", "--watch-interval", "1m"], "1m"),
        ],
    )
    def test_it_runs_if_the_operator_has_an_interval(self, args: list[str], interval: str) -> None:
        assert control_plane(deployment(OPERATOR, args=args)).watch_interval("shop") == interval

    def test_it_replaces_pods_of_the_watched_namespace_only(self) -> None:
        made = control_plane(deployment(OPERATOR, args=["--watch-interval=2m", "--watch-namespace=shop"]))
        assert made.watch_interval("shop") == "2m"
        assert made.watch_interval("bank") == ""


class TestSidecarImage:
    @staticmethod
    def injector(image: str) -> Object:
        return deployment(INJECTOR, env=[{"name": "NAMESPACE"}, {"name": "SIDECAR_IMAGE", "value": image}])

    def test_it_is_that_of_the_injector(self) -> None:
        operator = deployment(OPERATOR)
        assert control_plane(operator, self.injector("daprio/daprd:1.18.3")).sidecar_image == "daprio/daprd:1.18.3"
        assert control_plane(operator, deployment(INJECTOR)).sidecar_image == ""
        assert control_plane(operator).sidecar_image == ""

    def test_injectors_that_disagree_do_not_tell(self) -> None:
        assert control_plane(self.injector("daprd:1"), self.injector("daprd:2")).sidecar_image == ""


class TestRevision:
    def test_it_changes_with_the_spec_and_with_the_availability(self) -> None:
        first = deployment(INJECTOR)
        changed, down, back = (deployment(INJECTOR) for _ in range(3))
        changed["metadata"]["generation"] = 2
        down["status"] = {}
        back["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:01:00Z"
        revisions = {control_plane(each).revision for each in (first, changed, down, back)}
        assert len(revisions) == 4

    def test_it_is_the_same_while_nothing_happens(self) -> None:
        scaled = deployment(INJECTOR)
        scaled["status"]["availableReplicas"] = 2
        assert control_plane(scaled).revision == control_plane(deployment(INJECTOR)).revision


class TestDapr:
    FIT = ControlPlane(tuple(Service(name, "dapr-system", 1, 1) for name in SERVICES))
    STORE = Component("store", secrets=(SecretKey("redis", "password"),))

    def test_a_fit_dapr_is_no_obstacle(self) -> None:
        assert dapr_obstacle(self.FIT, [self.STORE], {"redis": frozenset({"password"})}, app_id="web") == ""

    @pytest.mark.parametrize("missing", range(3))
    def test_each_service_must_be_installed_and_available(self, missing: int) -> None:
        name = SERVICES[missing]
        others = [each for each in self.FIT.services if each.name != name]
        assert f"{name} is not installed" in dapr_obstacle(ControlPlane(tuple(others)), [], {}, app_id="web")
        down = ControlPlane((*others, Service(name, "dapr-system", 0, 2)))
        assert f"{name} is not available (0 of 2 replicas in namespace dapr-system)" in dapr_obstacle(
            down, [], {}, app_id="web"
        )
        one_of_three = ControlPlane((*others, Service(name, "dapr-system", 1, 3)))
        assert dapr_obstacle(one_of_three, [], {}, app_id="web") == ""

    @pytest.mark.parametrize(
        ("available", "desired", "fit"), [(1, 1, True), (2, 3, True), (1, 3, False), (0, 0, False)]
    )
    def test_actors_need_a_majority_of_placement(self, available: int, desired: int, fit: bool) -> None:
        services = ControlPlane((*self.FIT.services, Service(PLACEMENT, "dapr-system", available, desired)))
        assert (dapr_obstacle(services, [], {}, app_id="web", hosts_actors=True) == "") is fit
        assert dapr_obstacle(services, [], {}, app_id="web") == ""

    def test_placement_is_needed_for_sidecars_that_may_host_actors_only_where_it_is_installed(self) -> None:
        assert "dapr-placement-server is not installed" in self.FIT.obstacle(hosts_actors=True)
        assert self.FIT.obstacle(hosts_actors=None) == ""
        down = ControlPlane((*self.FIT.services, Service(PLACEMENT, "dapr-system", 0, 1)))
        assert "dapr-placement-server is not available" in down.obstacle(hosts_actors=None)

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [({}, "which does not exist"), ({"redis": frozenset({"user"})}, "which has no such key")],
    )
    def test_a_dangling_secret_of_any_component_in_scope_is_an_obstacle(
        self, keys: dict[str, frozenset[str]], reason: str
    ) -> None:
        obstacle = dapr_obstacle(self.FIT, [Component("fine"), self.STORE], keys, app_id="web")
        assert obstacle.startswith("Component store refers to key password of Secret redis, ")
        assert reason in obstacle
        elsewhere = msgspec.structs.replace(self.STORE, scopes=frozenset({"api"}))
        assert dapr_obstacle(self.FIT, [elsewhere], keys, app_id="web") == ""
        assert dapr_obstacle(self.FIT, [elsewhere], keys, app_id="api") == obstacle

    @pytest.mark.parametrize(("store", "read"), [(None, True), ("", True), ("kubernetes", True), ("vault", False)])
    def test_only_references_to_kubernetes_secrets_count(self, store: str | None, read: bool) -> None:
        items = [
            {"name": "a", "value": "inline"},
            {"name": "b", "secretKeyRef": {"name": "redis", "key": "password"}},
            {"name": "c", "secretKeyRef": {"name": "token"}},
        ]
        manifest = {"metadata": {"name": "store"}, "spec": {"metadata": items}, "scopes": ["web"]}
        if store is not None:
            manifest["auth"] = {"secretStore": store}
        secrets = (SecretKey("redis", "password"), SecretKey("token", "token")) if read else ()
        assert component_of(manifest) == Component("store", frozenset({"web"}), secrets)

    def test_a_component_without_fields_needs_nothing(self) -> None:
        manifest = {"metadata": {"name": "a"}, "spec": {"metadata": None}, "scopes": None, "auth": None}
        assert component_of(manifest) == Component("a")
