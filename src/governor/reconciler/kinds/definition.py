"""What a kind consists of beside its struct: names, printer columns and rules; and the types that several kinds use."""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from governor.domain.documents import API_VERSION
from governor.kube.controller.views import Resource, ResourceMetadata
from governor.kube.objects import ApiResource

CATEGORY: Final = "governor"
"""``kubectl get governor`` lists the objects of all kinds."""
MAX_ENTRIES: Final = 64
"""Length of lists and maps that users write. CEL rules need a bound to be within the API server's cost limit."""

GROUP, _, VERSION = API_VERSION.partition("/")

_LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_SEMVER: Final = r"^v?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z.-]+)?$"

ModuleName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_LABEL, max_length=53)]
"""As long as the name of a Helm release may be, because it is the default of that name."""
ModuleVersion: TypeAlias = Annotated[str, msgspec.Meta(pattern=_SEMVER, max_length=64)]
NamespaceName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_LABEL, max_length=63)]
ObjectName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_SUBDOMAIN, max_length=253)]
LabelledName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_SUBDOMAIN, max_length=63)]
"""Name of a Cluster or Installation, which is also a label of its ModuleInstances."""
ReleaseName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_SUBDOMAIN, max_length=53)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
DataKey: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[-._a-zA-Z0-9]+$", max_length=253)]
ATOMIC: Final = msgspec.Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})
"""Of a map that server-side apply replaces as a whole. Otherwise it stores null for one that becomes empty."""
Values: TypeAlias = Annotated[dict[str, Any], ATOMIC]
Time: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of the parts of a spec or status. Fields that a newer version has added are ignored."""


class LabelledMetadata(ResourceMetadata, frozen=True):
    """Metadata of a kind whose labels are read."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)


class SecretKey(Part, frozen=True):
    """One entry of a Secret in the hub namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey
    """Key in its data."""


class Rule(msgspec.Struct, frozen=True):
    """A CEL rule and the message that the API server shows if it does not hold."""

    rule: str
    message: str


class Column(msgspec.Struct, frozen=True):
    """A column of ``kubectl get``; a wide one is shown with ``-o wide`` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")


class Definition(msgspec.Struct, frozen=True):
    """One kind: its struct, its names, what ``kubectl get`` shows, and rules on the whole object."""

    view: type[Resource]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()
    """These see the fields of the object and ``self.metadata.name``."""

    @property
    def kind(self) -> str:
        """Return the name of the kind."""
        return self.view.__name__

    @property
    def resource(self) -> ApiResource:
        """Return the kind as the API server serves it."""
        subresources = frozenset({"status"}) if self.has_status else frozenset[str]()
        return ApiResource(GROUP, VERSION, self.kind, self.plural, namespaced=True, subresources=subresources)

    @property
    def name(self) -> str:
        """Return the name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"

    @property
    def has_status(self) -> bool:
        """Return whether the kind has a status of its own."""
        return "status" in self.view.__annotations__


def validated(*rules: Rule) -> msgspec.Meta:
    """Return the annotation of a field whose value must satisfy these rules."""
    return msgspec.Meta(extra_json_schema={"x-kubernetes-validations": msgspec.to_builtins(list(rules))})


def exactly_one(*fields: str) -> msgspec.Meta:
    """Return the annotation of a field whose value has exactly one of these fields."""
    return validated(exactly_one_rule(*fields))


def exactly_one_rule(*fields: str, of: str = "self") -> Rule:
    """Return the rule that exactly one of these optional fields is set."""
    present = ", ".join(f"has({of}.{each})" for each in fields)
    *most, last = fields
    message = f"set exactly one of {', '.join(most)} and {last}"
    return Rule(f"[{present}].filter(each, each).size() == 1", message)
