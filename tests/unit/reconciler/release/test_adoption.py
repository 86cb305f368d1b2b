"""Former owners of objects: how their objects are recognised, what Helm has stored, and how they let go."""

import base64
import json

import msgspec
import pytest

from governor.errors import GovernorError
from governor.kube.applyset import ObjectResult, Outcome
from governor.kube.objects import ObjectRef
from governor.reconciler.kinds.adoption import Adoption, ArgoApplication, FluxKind, FluxObject, HelmRelease
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from governor.reconciler.release.adoption import FormerOwner, former_owner
from governor.reconciler.release.helm_release import decode
from governor.reconciler.steps.adoption import deviations
from governor.values.treediff import Difference, Operation

SPEC = ModuleInstanceSpec(
    module="shop",
    cluster="local",
    installation="shop",
    installation_created="2026-01-01T00:00:00Z",
    version="1.0.0",
    chart_digest=f"sha256:{0:064x}",
    namespace="space",
    release_name="release",
)


def owner(adopt: Adoption) -> FormerOwner:
    found = former_owner(msgspec.structs.replace(SPEC, adopt=adopt))
    assert found is not None
    return found


def test_a_module_without_adoption_has_no_former_owner() -> None:
    assert former_owner(SPEC) is None


@pytest.mark.parametrize(
    ("release", "title", "name", "namespace"),
    [
        (HelmRelease(), "Helm release space/release", "release", "space"),
        (HelmRelease(name="old", namespace="there"), "Helm release there/old", "old", "there"),
    ],
)
def test_a_helm_release_is_that_of_the_module_unless_named(
    release: HelmRelease, title: str, name: str, namespace: str
) -> None:
    found = owner(Adoption(helm_release=release))
    assert (found.title, set(found.managers)) == (title, {"helm"})
    assert found.marks == ({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace},)
    assert f"kubectl -n {namespace} delete secrets -l owner=helm,name={name}" in found.next_step


def test_an_object_of_flux_is_suspended_before_it_is_deleted() -> None:
    found = owner(Adoption(flux=FluxObject(FluxKind.HELM_RELEASE, "orders", "flux-system")))
    assert found.managers == {"helm-controller"}
    assert found.marks == (
        {"helm.toolkit.fluxcd.io/name": "orders", "helm.toolkit.fluxcd.io/namespace": "flux-system"},
    )
    suspended, deleted = (found.next_step.index(each) for each in ('"suspend":true', "delete helmreleases"))
    assert suspended < deleted < found.next_step.index("delete secrets -l owner=helm,name=release")


def test_an_application_of_argo_cd_loses_its_finalizers_first() -> None:
    found = owner(Adoption(argocd=ArgoApplication("orders")))
    assert {"argocd.argoproj.io/tracking-id": "orders:*"} in found.marks
    assert found.next_step.index('"finalizers":null') < found.next_step.index("delete applications.argoproj.io orders")


def helm_secret(content: object) -> dict[str, object]:
    text = base64.b64encode(base64.b64encode(json.dumps(content).encode())).decode()
    return {"metadata": {"name": "sh.helm.release.v1.a.v1", "namespace": "space"}, "data": {"release": text}}


def test_a_record_without_compression_is_read() -> None:
    manifest = "---\n# Source: a\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: b}\n---\n"
    record = decode(helm_secret({"version": 3, "info": {"status": "deployed"}, "manifest": manifest}))
    assert (record.version, record.status) == (3, "deployed")
    assert record.objects() == [ObjectRef("apps", "Deployment", "b", "web")]


@pytest.mark.parametrize("content", [[], {"version": "x"}, None])
def test_a_damaged_record_is_an_error_that_names_it(content: object) -> None:
    with pytest.raises(GovernorError, match=r"space/sh\.helm\.release\.v1\.a\.v1"):
        decode(helm_secret(content))


def test_a_dry_run_may_change_marks_only() -> None:
    ref = ObjectRef("", "ConfigMap", "space", "a")
    marks = Difference('metadata.annotations["meta.helm.sh/release-name"]', Operation.REMOVED, old="a")
    results = [
        ObjectResult(ref, Outcome.UNCHANGED),
        ObjectResult(ref, Outcome.CHANGED, differences=(marks,)),
        ObjectResult(ref, Outcome.CHANGED, differences=(marks, Difference("data.a", Operation.ADDED, new="1"))),
        ObjectResult(ref, Outcome.CREATED),
        ObjectResult(ref, Outcome.RECREATED, reason="spec.a is immutable"),
        ObjectResult(ref, Outcome.REFUSED, error="belongs to another"),
    ]
    assert list(deviations(results)) == [
        "ConfigMap space/a: data.a",
        "ConfigMap space/a: does not exist",
        "ConfigMap space/a: would be re-created: spec.a is immutable",
        "ConfigMap space/a: belongs to another",
    ]
