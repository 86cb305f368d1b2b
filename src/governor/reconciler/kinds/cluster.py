"""Cluster: one cluster that modules are installed in, and the state of all of them."""

from typing import Annotated, Final

from governor.kube.controller.views import Resource, Status
from governor.reconciler.kinds.definition import (
    AGE,
    Column,
    DataKey,
    Definition,
    LabelledMetadata,
    ObjectName,
    Part,
    Rule,
    exactly_one,
)
from governor.reconciler.kinds.state import REACHABLE, ModuleCounts, ModuleLine, State

LOCAL: Final = "local"
"""Name of the Cluster that ``governor reconciler install`` creates for the cluster that it runs in."""


class InCluster(Part, frozen=True):
    """The cluster that the reconciler itself runs in. There is nothing to set: write {}."""


class KubeconfigSecret(Part, frozen=True):
    """A kubeconfig in a Secret of the same namespace.

    It must contain its certificates and credentials: files, programs and unverified connections are refused.
    """

    name: ObjectName
    """Name of the Secret."""
    key: DataKey = "kubeconfig"
    """Key of the kubeconfig in its data."""


class Access(Part, frozen=True):
    """How the API server of a cluster is reached."""

    in_cluster: InCluster | None = None
    """With the service account of the reconciler, if it manages the cluster that it runs in."""
    kubeconfig_secret: KubeconfigSecret | None = None
    """With a kubeconfig, for any other cluster."""


class ClusterSpec(Part, frozen=True):
    """A cluster and how it is reached."""

    access: Annotated[Access, exactly_one("inCluster", "kubeconfigSecret")]
    """How the API server of the cluster is reached: exactly one of its fields."""
    paused: bool = False
    """Apply, repair and remove nothing on this cluster. Its state is still reported."""


class ClusterStatus(Status, frozen=True, gc=False):
    """The state of a cluster and of its modules. It is written only when it changes."""

    state: State | None = None
    """The worst state of its modules; Unknown if the cluster has not answered for some time."""
    ready: str = ""
    """Ready modules of all modules, such as 4/5."""
    message: str = ""
    """What determines the state, and what to do next."""
    uid: str = ""
    """Identity of the cluster: the uid of its namespace kube-system."""
    version: str = ""
    """Version of its API server."""
    counts: ModuleCounts | None = None
    """Number of modules in each state."""
    modules: tuple[ModuleLine, ...] = ()
    """One line per module, those that need an action first; at most 500."""


class Cluster(Resource, frozen=True, kw_only=True):
    """A cluster that modules are installed in. Its labels select it, and provide values.

    Deleting a Cluster removes nothing from the cluster itself: its modules stay as they are, unmanaged.
    """

    metadata: LabelledMetadata
    spec: ClusterSpec
    """The cluster, and how it is reached."""
    status: ClusterStatus = ClusterStatus()
    """The state of the cluster, as last observed."""


CLUSTER: Final = Definition(
    Cluster,
    plural="clusters",
    short_name="gcl",
    columns=(
        Column("State", ".status.state"),
        Column("Modules", ".status.ready"),
        Column("Reachable", f'.status.conditions[?(@.type=="{REACHABLE}")].status'),
        Column("Version", ".status.version"),
        AGE,
        Column("Paused", ".spec.paused", "boolean", wide=True),
        Column("Message", ".status.message", wide=True),
    ),
    rules=(Rule("self.metadata.name.size() <= 63", "the name must have at most 63 characters"),),
)
