"""Module: one immutable version of a module."""

import enum
from typing import Annotated, Final

import msgspec

from governor.domain.documents import Drift
from governor.kube.applyset import IgnoredFields
from governor.kube.controller.views import Resource, ResourceMetadata
from governor.kube.readiness import rules as readiness_rules
from governor.reconciler.kinds.definition import (
    AGE,
    MAX_ENTRIES,
    Column,
    DataKey,
    Definition,
    Digest,
    ModuleName,
    ModuleVersion,
    NamespaceName,
    ObjectName,
    Part,
    ReleaseName,
    Rule,
    SecretKey,
    Values,
    exactly_one,
    validated,
)


class CustomResources(enum.StrEnum):
    """What happens to custom resources of others when the module that defines their kinds is removed."""

    BLOCK = "block"
    """The removal stops before the module's operator is removed, and names them."""
    ORPHAN = "orphan"
    """The definitions stay, and with them the resources."""
    CASCADE = "cascade"
    """They are deleted with the definitions."""


class Protection(enum.StrEnum):
    """How the objects of a module are protected from changes by others."""

    NONE = "none"
    """Not at all: changes by others are neither detected nor repaired, whatever the drift policy says."""
    DRIFT = "drift"
    """As the drift policy says."""
    POLICY = "policy"
    """In addition, an admission policy lets the API server refuse changes and deletions by others."""


class PackedChart(Part, frozen=True):
    """A packed chart in a ConfigMap of the hub namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: DataKey = "chart.tgz"
    """Key in its binaryData."""


class Chart(Part, frozen=True):
    """Where the chart of a module comes from, and which content it must have."""

    digest: Digest
    """Digest of the archive, of the manifest in the registry, or of the files of the directory. Any other content is
    refused."""
    directory: Annotated[str, msgspec.Meta(pattern="^/", max_length=1024)] | None = None
    """Absolute path of an unpacked chart in the file system of the reconciler."""
    archive: Annotated[str, msgspec.Meta(pattern="^(https?://|file:///)", max_length=1024)] | None = None
    """URL of a packed chart: https://, file:/// for a file of the reconciler, or http:// on loopback."""
    oci: Annotated[str, msgspec.Meta(pattern="^oci://[^/@]+/[^@]+$", max_length=1024)] | None = None
    """Repository of a chart in an OCI registry, such as oci://registry.example.com/charts/dapr. There is no tag: the
    chart is pulled by its digest."""
    config_map: PackedChart | None = None
    """A packed chart that is stored in the cluster itself, for small charts; governor cluster bootstrap uses it."""
    credentials_secret: ObjectName = ""
    """Secret with the credentials of the registry or web server, in the hub namespace: username and password, or a
    .dockerconfigjson."""
    ca_secret: SecretKey | None = None
    """Certificates of the CAs that sign the certificate of the registry or web server, instead of the system's."""


class ReadinessRule(readiness_rules.Rule, frozen=True, kw_only=True):
    """A condition on a field of the module's objects of one kind."""

    group: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """API group of the objects; empty for the core group."""
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    """Kind of the objects."""
    name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """Name of one object; if empty, all objects of the kind must satisfy the rule."""


class Readiness(Part, frozen=True):
    """When the objects of a module count as ready. Most kinds need no rule."""

    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 600
    """How long the module may take to become ready after a change. Later it is reported as not healthy."""
    rules: Annotated[tuple[ReadinessRule, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    """Conditions for kinds whose readiness cannot be seen from their status in the usual way."""


class DriftPolicy(Part, frozen=True):
    """What happens when another client changes what a module has applied."""

    mode: Drift = Drift.ENFORCE
    """Whether differences are detected and repaired. Quote "off": in YAML it is a boolean otherwise."""
    ignored: Annotated[tuple[IgnoredFields, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    """Fields that keep their live values and never count as drift."""


class ModuleSpec(Part, frozen=True):
    """One version of a module."""

    module: ModuleName
    """Name of the module, the same in all of its versions."""
    version: ModuleVersion
    """Semantic version of the module; it may differ from that of its chart."""
    chart: Annotated[Chart, exactly_one("directory", "archive", "oci", "configMap")]
    """The chart, by digest: exactly one of directory, archive, oci and configMap."""
    values: Values = msgspec.field(default_factory=dict)
    """Default values. They override those of the chart, and are overridden by those of an Installation."""
    namespace: NamespaceName = ""
    """Namespace of the module's objects; by default that of the module's name."""
    release_name: ReleaseName = ""
    """Name of the release that the chart is rendered for; by default the module's name."""
    depends_on: Annotated[
        tuple[ModuleName, ...],
        msgspec.Meta(max_length=MAX_ENTRIES, extra_json_schema={"x-kubernetes-list-type": "set"}),
    ] = ()
    """Modules that must be ready on the same cluster before this one is applied, and are removed after it."""
    readiness: Readiness = Readiness()
    """When the module counts as ready."""
    drift: DriftPolicy = DriftPolicy()
    """What happens when another client changes the module's objects. An Installation can override it."""
    protection: Protection = Protection.DRIFT
    """How the objects are protected from changes by others. An Installation can override it."""
    custom_resources: CustomResources = CustomResources.BLOCK
    """What happens to custom resources of others when the module that defines their kinds is removed."""


class Module(Resource, frozen=True, kw_only=True):
    """One version of a module: a Helm chart by digest, with defaults and rules.

    A Module never changes: create another one for another version. Its name is that of the module, a hyphen and the
    version in lower case, with a hyphen in place of a plus sign.
    """

    metadata: ResourceMetadata
    spec: Annotated[
        ModuleSpec, validated(Rule("self == oldSelf", "a Module is immutable: create one for the new version"))
    ]
    """The content of this version. It cannot be changed."""


_NAME_RULE: Final = Rule(
    "self.metadata.name == self.spec.module + '-' + self.spec.version.lowerAscii().replace('+', '-')",
    "the name must be that of the module, a hyphen and the version in lower case, with - in place of +",
)

MODULE: Final = Definition(
    Module,
    plural="modules",
    short_name="gmod",
    columns=(
        Column("Module", ".spec.module"),
        Column("Version", ".spec.version"),
        Column("Depends on", ".spec.dependsOn"),
        AGE,
        Column("Digest", ".spec.chart.digest", wide=True),
    ),
    rules=(_NAME_RULE,),
)


def module_object_name(module: str, version: str) -> str:
    """Return the name of the Module object of a module's version; the rule of the kind requires it."""
    return f"{module}-{version.lower().replace('+', '-')}"
