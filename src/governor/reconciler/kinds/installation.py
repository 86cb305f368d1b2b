"""Installation: which module is enabled on which clusters, and how it is configured."""

import enum
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from governor.kube.controller.views import Resource, ResourceMetadata, Status
from governor.reconciler.kinds.adoption import AdoptionField
from governor.reconciler.kinds.definition import (
    AGE,
    ATOMIC,
    MAX_ENTRIES,
    Column,
    DataKey,
    Definition,
    LabelledName,
    ModuleName,
    ModuleVersion,
    NamespaceName,
    ObjectName,
    Part,
    ReleaseName,
    Rule,
    Values,
    exactly_one,
    exactly_one_rule,
    validated,
)
from governor.reconciler.kinds.module import DriftPolicy, Protection
from governor.reconciler.kinds.state import READY, RESOLVED, State
from governor.values import selectors


class DeletionPolicy(enum.StrEnum):
    """What happens to the objects of a module that is no longer installed."""

    DELETE = "delete"
    """They are deleted."""
    ORPHAN = "orphan"
    """They stay as they are, unmanaged."""


class OnFailure(enum.StrEnum):
    """What happens when the failure of a change is escalated."""

    HOLD = "hold"
    """The module stays where the change stopped."""
    ROLLBACK = "rollback"
    """The module returns to the last state that was ready."""


_VALUES_RULE: Final = Rule(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "In and NotIn need values, Exists and DoesNotExist take none",
)


class ClusterSelector(Part, frozen=True):
    """A selector of Clusters by their labels; an empty one selects all."""

    match_labels: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_ENTRIES)] = msgspec.field(default_factory=dict)
    """Labels that a Cluster must have."""
    match_expressions: Annotated[
        tuple[Annotated[selectors.Expression, validated(_VALUES_RULE)], ...], msgspec.Meta(max_length=MAX_ENTRIES)
    ] = ()
    """Conditions on labels that a Cluster must satisfy."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a Cluster with these labels is selected."""
        return selectors.matches(labels, self.match_labels, self.match_expressions)


class ValuesKey(Part, frozen=True):
    """One entry of a Secret or ConfigMap, which contains values as YAML."""

    name: ObjectName
    """Name of the Secret or ConfigMap, in the namespace of the Installation."""
    key: DataKey = "values.yaml"
    """Key in its data."""


class ValuesSource(Part, frozen=True):
    """Values from a Secret or ConfigMap. If the source or its key is missing, nothing is applied."""

    secret_ref: ValuesKey | None = None
    """Values in a Secret."""
    config_map_ref: ValuesKey | None = None
    """Values in a ConfigMap."""


class CreatedMetadata(ResourceMetadata, frozen=True):
    """Metadata of a kind whose age is read."""

    creation_timestamp: str = ""


class InstallationSpec(Part, frozen=True):
    """A module, the clusters that it is installed in, and its configuration."""

    module: ModuleName
    """Name of the module."""
    version: ModuleVersion | None = None
    """The version to install. Set either version or channel."""
    channel: ObjectName | None = None
    """Name of the Channel that determines the version."""
    cluster: LabelledName | None = None
    """Name of the Cluster to install the module in. Set either cluster or clusterSelector."""
    cluster_selector: Annotated[ClusterSelector, ATOMIC] | None = None
    """The Clusters to install the module in, by their labels; {} selects all."""
    namespace: NamespaceName = ""
    """Namespace of the module's objects; by default that of the Module."""
    release_name: ReleaseName = ""
    """Name of the release that the chart is rendered for; by default that of the Module."""
    values: Values = msgspec.field(default_factory=dict)
    """Values of this Installation. They override those of valuesFrom, which override those of the Module."""
    values_from: Annotated[
        tuple[Annotated[ValuesSource, exactly_one("secretRef", "configMapRef")], ...],
        msgspec.Meta(max_length=MAX_ENTRIES),
    ] = ()
    """Values from Secrets and ConfigMaps; later entries override earlier ones."""
    values_from_labels: Annotated[
        dict[str, Annotated[str, msgspec.Meta(max_length=317)]], msgspec.Meta(max_length=MAX_ENTRIES)
    ] = msgspec.field(default_factory=dict)
    """Values from labels of the Cluster, which override all others: the path of a value, such as global.region, and the
    name of the label. A Cluster without the label is an error."""
    service_account_name: ObjectName = ""
    """Service account, in the module's namespace of the cluster, whose permissions limit what the chart may contain. If
    empty, the permissions of the reconciler apply: a user who may create Installations can then do all that it can."""
    drift: Annotated[DriftPolicy, ATOMIC] | None = None
    """Replaces the drift policy of the Module."""
    protection: Protection | None = None
    """Replaces the protection of the Module."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    """What happens to the module's objects when the Installation is deleted or no longer selects the cluster."""
    adopt: AdoptionField | None = None
    """The owner from which the module takes over objects that exist already. An installed module takes nothing over."""
    paused: bool = False
    """Apply and repair nothing of this module. It is still removed with its Installation."""
    allow_downgrade: bool = False
    """Allow a version that is older than the applied one; otherwise it is refused."""
    on_failure: OnFailure = OnFailure.HOLD
    """What happens when the failure of a change is escalated: hold, or rollback to the last state that was ready."""


class InstallationStatus(Status, frozen=True, gc=False):
    """On which clusters the module of an Installation is ready."""

    state: State | None = None
    """The worst state of its module on the clusters."""
    version: str = ""
    """The desired version."""
    clusters: int = 0
    """Number of selected clusters."""
    ready: str = ""
    """Clusters on which the module is ready, of all selected ones, such as 4/5."""


class Installation(Resource, frozen=True, kw_only=True):
    """A module that is enabled on one cluster, or on all that a selector matches, and its configuration.

    Two Installations of one module on one cluster are in conflict: neither is applied further until one is gone.
    """

    metadata: CreatedMetadata
    spec: Annotated[
        InstallationSpec,
        validated(exactly_one_rule("version", "channel"), exactly_one_rule("cluster", "clusterSelector")),
    ]
    """What to install, where and how."""
    status: InstallationStatus = InstallationStatus()
    """The state of the Installation, as last observed."""

    def selects(self, cluster: str, labels: Mapping[str, str]) -> bool:
        """Whether the module is enabled on the Cluster of this name and these labels."""
        if self.spec.cluster_selector is not None:
            return self.spec.cluster_selector.matches(labels)
        return self.spec.cluster == cluster


INSTALLATION: Final = Definition(
    Installation,
    plural="installations",
    short_name="gin",
    columns=(
        Column("Module", ".spec.module"),
        Column("Version", ".status.version"),
        Column("State", ".status.state"),
        Column("Clusters", ".status.ready"),
        Column("Channel", ".spec.channel"),
        AGE,
        Column("Resolved", f'.status.conditions[?(@.type=="{RESOLVED}")].reason', wide=True),
        Column("Message", f'.status.conditions[?(@.type=="{READY}")].message', wide=True),
    ),
    rules=(Rule("self.metadata.name.size() <= 63", "the name must have at most 63 characters"),),
)
