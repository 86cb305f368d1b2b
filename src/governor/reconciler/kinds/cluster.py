"""Cluster: one cluster that modules are installed in, and the state of all of them."""

from typing import Annotated, Final

import msgspec

from governor.kube.controller.views import Resource, Status
from governor.reconciler.kinds.definition import (
    AGE,
    MAX_ENTRIES,
    Column,
    DataKey,
    Definition,
    LabelledMetadata,
    ObjectName,
    Part,
    Rule,
    exactly_one,
)
from governor.reconciler.kinds.failure import PENDING_TIMEOUT_S, Failure, OnTimeout, Sink
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
    pending_timeout: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = PENDING_TIMEOUT_S
    """Seconds for which a module may fail, or not become ready, and the cluster may not answer, before onTimeout."""
    on_timeout: OnTimeout = OnTimeout.ESCALATE
    """What happens to a failure that lasts longer than pendingTimeout: escalate it and retry slowly, escalate it and
    fail without a retry, or retry without an escalation."""
    sinks: Annotated[
        tuple[Sink, ...],
        msgspec.Meta(
            max_length=MAX_ENTRIES,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Where escalated failures are reported."""


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
    failure: Failure | None = None
    """Why the cluster cannot be reached, since when, and whether that is escalated."""
    run: str = ""
    """Correlation id of the run that has changed the status last; Events, logs and notifications have it, too."""


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
