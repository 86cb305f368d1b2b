"""The apply sets of a module on a cluster: its objects, and its hooks."""

import datetime
import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from governor.kube.applyset import ApplySet, Claim, IgnoredFields, Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ObjectRef
from governor.process.clock import Clock
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.release.adoption import FormerOwner, former_owner

MANAGER: Final = "governor-modules"
LABEL_PREFIX: Final = f"modules.{GROUP}"
_KEEP: Final = {"helm.sh/resource-policy": "keep"}
_HOOKS: Final = "hooks"
_POLICY: Final = "policy"
_HOOK_MARK: Final = {"helm.sh/hook": "*"}
_MAX_LABEL: Final = 63

SETTINGS: Final = Settings(
    manager=MANAGER,
    label_prefix=LABEL_PREFIX,
    force_conflicts=True,
    refuse_foreign=True,
    exclusive_claim=True,
    keep_annotations=_KEEP,
    single_reads=16,  # a list by label makes the API server read all objects of a kind
    claim_fresh_s=1.0,  # a small module is applied with one claim
)
"""Of all modules: labels of their objects and inventories."""

_CERTIFICATES: Final = (
    IgnoredFields(
        ('webhooks["*"].clientConfig.caBundle',),
        "admissionregistration.k8s.io",
        "*WebhookConfiguration",
    ),
    IgnoredFields(("spec.caBundle",), "apiregistration.k8s.io", "APIService"),
    IgnoredFields(("spec.conversion.webhook.clientConfig",), "apiextensions.k8s.io", "CustomResourceDefinition"),
)
"""Operators write the certificates of their own webhooks at start; a chart has placeholders for them at best."""


class Place(msgspec.Struct, frozen=True):
    """Where a module is installed, and by which hub."""

    client: Client
    """Client of the cluster, with the permissions of the reconciler."""
    namespace: str
    """Namespace of inventories and records in the cluster."""
    holder: str
    """Identity of the hub, for claims."""
    cluster_uid: str
    clock: Clock
    is_remote: bool = False
    """Whether it is another cluster than the hub's: there the namespace must be created."""


def owner_of(module: str, namespace: str) -> Owner:
    """Return the owner of a module's objects. Hubs in other namespaces have others: their objects are not shared."""
    return Owner(_owner_id(module, namespace), namespace, f"module-{module}")


def hooks_owner_of(module: str, namespace: str) -> Owner:
    """Return the owner of the objects of a module's hooks."""
    return Owner(_owner_id(module, f"{_HOOKS}.{namespace}"), namespace, f"module-{module}.{_HOOKS}")


def policy_owner_of(module: str, namespace: str) -> Owner:
    """Return the owner of the admission policy that protects a module's objects."""
    return Owner(_owner_id(module, f"{_POLICY}.{namespace}"), namespace, f"module-{module}.{_POLICY}")


def _owner_id(module: str, rest: str) -> str:
    """Return the value of the owner label: it begins with the name of the module and a dot."""
    text = f"{module}.{rest}"
    return text if len(text) <= _MAX_LABEL else f"{module}.{hashlib.sha256(rest.encode()).hexdigest()[:9]}"


def claim_of(place: Place, instance: ModuleInstance) -> Claim:
    """Return the claim of a hub on a module: a ModuleInstance that was created later, or changed later, is newer."""
    created = datetime.datetime.fromisoformat(instance.metadata.creation_timestamp)
    return Claim(place.holder, int(created.timestamp()), instance.metadata.generation, place.cluster_uid)


def objects_client(place: Place, spec: ModuleInstanceSpec) -> Client:
    """Return the client that writes the objects of a module: with the permissions of its service account, if any."""
    if not spec.service_account_name:
        return place.client
    return place.client.impersonating(f"system:serviceaccount:{spec.namespace}:{spec.service_account_name}")


def module_objects(
    place: Place,
    instance: ModuleInstance,
    *,
    scaled: Iterable[ObjectRef] = (),
    inherited: frozenset[str] = frozenset(),
    former: FormerOwner | None = None,
) -> ApplySet:
    """Return the set of a module's objects; the replicas of ``scaled`` are those of an autoscaler.

    Objects of the ``former`` owner are adopted; all others that exist already are refused.
    """
    spec = instance.spec
    settings = msgspec.structs.replace(
        SETTINGS,
        default_namespace=spec.namespace,
        ignored_fields=ignored_fields(spec, scaled),
        inherited_owners=inherited,
        adopted_managers=former.managers if former else frozenset(),
        adopted_marks=former.marks if former else (),
    )
    return _set(place, instance, owner_of(spec.module, place.namespace), settings)


def hook_objects(place: Place, instance: ModuleInstance) -> ApplySet:
    """Return the set of the objects of a module's hooks. Helm removes hooks in spite of a policy to keep them.

    What hooks of a former owner have left is replaced like what the module's own hooks have left.
    """
    former = former_owner(instance.spec)
    settings = msgspec.structs.replace(
        SETTINGS,
        default_namespace=instance.spec.namespace,
        keep_annotations={},
        ignored_fields=_CERTIFICATES,
        adopted_managers=former.managers if former else frozenset(),
        adopted_marks=(_HOOK_MARK,) if former else (),
        remove_adoptable=former is not None,
    )
    return _set(place, instance, hooks_owner_of(instance.spec.module, place.namespace), settings)


def policy_objects(place: Place, instance: ModuleInstance) -> ApplySet:
    """Return the set of the policy that protects a module's objects; a tenant has no permission to write it."""
    owner = policy_owner_of(instance.spec.module, place.namespace)
    return ApplySet(place.client, owner, SETTINGS, place.clock, claim_of(place, instance))


def _set(place: Place, instance: ModuleInstance, owner: Owner, settings: Settings) -> ApplySet:
    return ApplySet(
        objects_client(place, instance.spec),
        owner,
        settings,
        place.clock,
        claim_of(place, instance),
        records=place.client,
    )


def ignored_fields(spec: ModuleInstanceSpec, scaled: Iterable[ObjectRef]) -> tuple[IgnoredFields, ...]:
    """Return the fields of a module's objects that keep their live values."""
    replicas = tuple(
        IgnoredFields(("spec.replicas",), each.group, each.kind, each.namespace, each.name) for each in sorted(scaled)
    )
    return (*_CERTIFICATES, *spec.drift.ignored, *replicas)
