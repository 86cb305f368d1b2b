"""ModuleInstance: one module on one cluster, the unit of work, retry, ordering and history."""

import enum
from typing import Annotated, Final

import msgspec

from governor.domain.conditions import Actor
from governor.kube.controller.views import Resource, Status
from governor.reconciler.kinds.adoption import Adopted, AdoptionField
from governor.reconciler.kinds.definition import (
    AGE,
    ATOMIC,
    GROUP,
    MAX_ENTRIES,
    Column,
    Definition,
    Digest,
    LabelledMetadata,
    LabelledName,
    ModuleName,
    ModuleVersion,
    NamespaceName,
    ObjectName,
    Part,
    ReleaseName,
    Rule,
    Time,
    Values,
    exactly_one,
)
from governor.reconciler.kinds.failure import Failure
from governor.reconciler.kinds.installation import DeletionPolicy, OnFailure, ValuesSource
from governor.reconciler.kinds.module import CustomResources, DriftPolicy, Protection
from governor.reconciler.kinds.state import Problem, State

LABEL_PREFIX: Final = f"reconciler.{GROUP}"
"""Prefix of the labels of what the reconciler writes in the hub namespace."""
OWNER_LABEL: Final = f"{LABEL_PREFIX}/owner"
"""Label of a ModuleInstance that the reconciler has created."""
MODULE_LABEL: Final = f"{GROUP}/module"
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
INSTALLATION_LABEL: Final = f"{GROUP}/installation"
FINALIZER: Final = f"{GROUP}/module"
"""Holds a ModuleInstance until its objects are removed from the cluster."""
DELETION_POLICY: Final = f"{GROUP}/deletion-policy"
"""Annotation of a ModuleInstance that overrides its deletion policy."""
ROLLBACK: Final = f"{GROUP}/rollback"
"""Annotation of a ModuleInstance with the generation that is rolled back."""


class ModuleInstanceSpec(Part, frozen=True):
    """What one module must be on one cluster, resolved from an Installation, its Channel, Module and Cluster."""

    module: ModuleName
    """Name of the module."""
    cluster: LabelledName
    """Name of the Cluster."""
    installation: LabelledName
    """Name of the Installation that enables the module on this cluster."""
    installation_created: Time
    """When that Installation was created. The module is not removed if the definition of Installations is younger: then
    the Installation was not deleted for itself."""
    version: ModuleVersion
    """The version, which determines the Module."""
    chart_digest: Digest
    """Digest of the Module's chart."""
    namespace: NamespaceName
    """Namespace of the module's objects."""
    release_name: ReleaseName
    """Name of the release that the chart is rendered for."""
    values: Values = msgspec.field(default_factory=dict)
    """Values of the Installation with those from labels of the Cluster."""
    values_from: Annotated[
        tuple[Annotated[ValuesSource, exactly_one("secretRef", "configMapRef")], ...],
        msgspec.Meta(max_length=MAX_ENTRIES),
    ] = ()
    """Values from Secrets and ConfigMaps, which values override."""
    depends_on: Annotated[tuple[ModuleName, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    """Modules that must be ready on this cluster first."""
    service_account_name: ObjectName = ""
    """Service account whose permissions limit what the chart may contain; empty for those of the reconciler."""
    drift: Annotated[DriftPolicy, ATOMIC] = DriftPolicy()
    """What happens when another client changes the module's objects."""
    protection: Protection = Protection.DRIFT
    """How the objects are protected from changes by others."""
    custom_resources: CustomResources = CustomResources.BLOCK
    """What happens to custom resources of others when the module is removed."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    """What happens to the module's objects when this ModuleInstance is deleted."""
    adopt: AdoptionField | None = None
    """The owner from which the module takes over objects that exist already."""
    paused: bool = False
    """If set, nothing is applied or repaired."""
    allow_downgrade: bool = False
    """Whether a version that is older than the applied one is allowed."""
    on_failure: OnFailure = OnFailure.HOLD
    """What happens when the failure of a change is escalated."""
    hold: Problem | None = None
    """If set, nothing is applied, repaired or removed: the desired spec can no longer be resolved."""


class Operation(enum.StrEnum):
    """What a change is for the module, which determines the hooks that run."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    ROLLBACK = "rollback"
    """To chart and values that were applied before."""


class Applied(Part, frozen=True):
    """One state that was applied."""

    version: str
    """Version of the module."""
    chart_digest: Digest
    """Digest of the chart."""
    values_digest: str
    """Keyed digest of the values; those from Secrets cannot be guessed from it."""
    time: Time
    """When it was applied."""
    operation: Operation = Operation.INSTALL
    """What the change was for the module. Its chart is rendered the same way again when it is repaired."""


class Attempt(Applied, frozen=True, kw_only=True):
    """A change that is under way; recorded before anything of it is written to the cluster."""

    is_applied: bool = False
    """Whether all objects are applied, and those that are no longer desired are removed."""
    is_adoption: bool = False
    """Whether the objects are taken over from another owner. None of the hooks runs: they ran for that owner."""


class KnownGood(Part, frozen=True):
    """Chart and values with which the module was ready."""

    generation: int
    """The last generation of the ModuleInstance with them."""
    version: str
    """Version of the module."""
    chart_digest: Digest
    """Digest of the chart."""
    values_digest: str
    """Keyed digest of the values."""
    namespace: NamespaceName
    """Namespace of the module's objects."""
    release_name: ReleaseName
    """Name of the release."""
    values: Values = msgspec.field(default_factory=dict)
    """Values of the Installation with those from labels of the Cluster."""
    values_from: tuple[ValuesSource, ...] = ()
    """Values from Secrets and ConfigMaps, which are read again."""


class RollbackCause(enum.StrEnum):
    """Why a change is rolled back."""

    REQUEST = "request"
    """By the annotation of the ModuleInstance."""
    POLICY = "policy"
    """By onFailure of the Installation."""


class Rollback(Part, frozen=True):
    """A change that is rolled back, until the spec changes again."""

    generation: int
    """The generation that is rolled back."""
    version: str
    """Its version."""
    cause: RollbackCause
    """Why it is rolled back."""
    message: str = ""
    """Why it has failed."""


class HookState(enum.StrEnum):
    """How far a hook is."""

    STARTED = "Started"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class HookRecord(Part, frozen=True):
    """A Helm hook that was run; recorded before it starts."""

    hook: str
    """Kind and name of the hook's object, and its namespace if the chart sets one."""
    event: str
    """The event that it ran for, such as post-install."""
    reference: str
    """Digest of the chart and values that it ran for."""
    state: HookState
    """How far it is."""
    time: Time
    """When it reached this state."""
    replaces: str = ""
    """Uid of the object of an earlier run, which is removed first; only of a hook that has started."""


class ModuleInstanceStatus(Status, frozen=True, gc=False):
    """The state of one module on one cluster."""

    state: State | None = None
    """The state of the module."""
    reason: str = ""
    """Why it has this state, as one word in CamelCase."""
    message: str = ""
    """The same for people, with what to do next."""
    actor: Actor = Actor.NOBODY
    """Who must act next."""
    inventory_digest: str = ""
    """Digest of the inventory of applied objects, which is stored in the cluster itself."""
    objects: int = 0
    """Number of applied objects."""
    policy_digest: str = ""
    """Digest of the admission policy that protects the objects; empty without one."""
    last_applied: Applied | None = None
    """What was applied last, with all of its hooks."""
    attempt: Attempt | None = None
    """The change that is under way."""
    hooks: tuple[HookRecord, ...] = ()
    """The hooks of the present version."""
    history: tuple[Applied, ...] = ()
    """What was applied before, newest first; the oldest entries are dropped."""
    known_good: tuple[KnownGood, ...] = ()
    """The last two states in which the module was ready, newest first. A rollback goes to the newest that is not the
    present spec."""
    rollback: Rollback | None = None
    """The change that is rolled back."""
    failure: Failure | None = None
    """What fails, since when, and whether it is escalated."""
    run: str = ""
    """Correlation id of the run that has changed the status last; Events, logs and notifications have it, too."""
    adopted: Adopted | None = None
    """From which owner the objects were taken over, if any."""


class InstanceAnnotations(msgspec.Struct, frozen=True, gc=False):
    """The annotations of a ModuleInstance that are read."""

    deletion_policy: str = msgspec.field(name=DELETION_POLICY, default="")
    """Set to ``orphan`` when a removal cannot succeed: the objects then stay, and the ModuleInstance is released."""
    rollback: str = msgspec.field(name=ROLLBACK, default="")
    """Set to the generation to roll it back."""


class InstanceMetadata(LabelledMetadata, frozen=True):
    """Metadata of a ModuleInstance: its age is part of its claim."""

    creation_timestamp: str = ""
    annotations: InstanceAnnotations = InstanceAnnotations()


class ModuleInstance(Resource, frozen=True, kw_only=True):
    """One module on one cluster. The reconciler writes it; change the Installation instead.

    Its name is that of the module, a dot and the name of the Cluster.
    """

    metadata: InstanceMetadata
    spec: ModuleInstanceSpec
    """What the module must be on this cluster. Only the reconciler writes it."""
    status: ModuleInstanceStatus = ModuleInstanceStatus()
    """The state of the module on this cluster, as last observed."""


MODULE_INSTANCE: Final = Definition(
    ModuleInstance,
    plural="moduleinstances",
    short_name="gmi",
    columns=(
        Column("Version", ".spec.version"),
        Column("State", ".status.state"),
        Column("Reason", ".status.reason"),
        Column("Applied", ".status.lastApplied.version"),
        AGE,
        Column("Actor", ".status.actor", wide=True),
        Column("Failure", ".status.failure.type", wide=True),
        Column("Message", ".status.message", wide=True),
    ),
    rules=(
        Rule(
            "self.metadata.name == self.spec.module + '.' + self.spec.cluster",
            "the name must be that of the module, a dot and the name of the Cluster",
        ),
    ),
)


def instance_name(module: str, cluster: str) -> str:
    """Return the name of the ModuleInstance of a module on a cluster; a module's name has no dot."""
    return f"{module}.{cluster}"
