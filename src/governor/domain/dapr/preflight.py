"""What a throw-away sidecar may do with a resource: which components it tries, and the copy that it gets of each.

A throw-away sidecar loads a change before any application's sidecar does. It must not take messages, push aside an
application's own connection or be found by anyone. ``docs/reference/preflight.md`` has the reasons. Running one is an
agent's business.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from governor.values.trees import Manifest

_TAKES_MESSAGES: Final = "an input binding would take messages"
_UNKNOWN: Final = "nothing is known of what a component of this category does when it starts"
_BY_SCHEMA: Final = "a Subscription is checked by its schema only"

_TRIED_CATEGORIES: Final = frozenset(
    {"state", "pubsub", "secretstores", "configuration", "lock", "crypto", "conversation", "middleware"}
)
_OUTPUT_ONLY: Final = frozenset(
    {
        "bindings.alicloud.dubbo",
        "bindings.alicloud.oss",
        "bindings.alicloud.sls",
        "bindings.alicloud.tablestore",
        "bindings.apns",
        "bindings.aws.dynamodb",
        "bindings.aws.s3",
        "bindings.aws.ses",
        "bindings.aws.sns",
        "bindings.azure.blobstorage",
        "bindings.azure.cosmosdb",
        "bindings.azure.cosmosdb.gremlinapi",
        "bindings.azure.openai",
        "bindings.azure.signalr",
        "bindings.cloudflare.queues",
        "bindings.commercetools",
        "bindings.dubbo",
        "bindings.gcp.bucket",
        "bindings.graphql",
        "bindings.http",
        "bindings.huawei.obs",
        "bindings.influx",
        "bindings.localstorage",
        "bindings.mysql",
        "bindings.postgres",
        "bindings.postgresql",
        "bindings.postmark",
        "bindings.redis",
        "bindings.sftp",
        "bindings.smtp",
        "bindings.twilio.sendgrid",
        "bindings.twilio.sms",
        "bindings.wasm",
        "bindings.zeebe.command",
    }
)
"""Bindings that cannot be inputs. Any other may be one, unless its metadata says ``direction: output``."""

_SILENT: Final = frozenset(
    {
        "bindings.apns",
        "bindings.aws.dynamodb",
        "bindings.aws.ses",
        "bindings.aws.sns",
        "bindings.graphql",
        "bindings.http",
        "bindings.huawei.obs",
        "bindings.influx",
        "bindings.localstorage",
        "bindings.mqtt",
        "bindings.mqtt3",
        "bindings.postmark",
        "bindings.smtp",
        "bindings.twilio.sendgrid",
        "bindings.twilio.sms",
        "conversation.echo",
        "middleware.http.ratelimit",
        "middleware.http.routeralias",
        "middleware.http.routerchecker",
        "middleware.http.uppercase",
        "pubsub.in-memory",
        "pubsub.rocketmq",
        "secretstores.local.env",
        "secretstores.local.file",
        "state.in-memory",
    }
)
"""Types that are known to reach for nothing when they start: that they start says little of their settings."""

_CONSUMER: Final = frozenset({"consumerid"})
"""Every pub/sub component has one; Dapr fills it in with the app id."""
_IDENTITIES: Final[Mapping[str, frozenset[str]]] = {
    "bindings.azure.eventhubs": frozenset({"consumerid", "consumergroup"}),
    "bindings.aws.kinesis": frozenset({"consumername"}),
    "bindings.kafka": frozenset({"clientid", "consumergroup"}),
    "bindings.mqtt": frozenset({"consumerid"}),
    "bindings.mqtt3": frozenset({"consumerid"}),
    "bindings.rocketmq": frozenset({"consumergroup"}),
    "pubsub.azure.eventhubs": frozenset({"consumergroup"}),
    "pubsub.jetstream": frozenset({"durablename", "name", "queuegroupname"}),
    "pubsub.kafka": frozenset({"clientid", "consumergroup"}),
    "pubsub.kubemq": frozenset({"clientid", "group"}),
    "pubsub.rabbitmq": frozenset({"clientname"}),
    "pubsub.rocketmq": frozenset({"consumergroup", "groupname", "instancename", "producergroup"}),
}
"""The fields by which a broker knows a client, in lower case. By type, since elsewhere a client id is a credential."""


class PreflightRule(msgspec.Struct, frozen=True):
    """What is done with one resource: nothing when there is a reason to skip it, else it is tried.

    ``connects`` is False for types that are known to reach for nothing when they start. ``identities`` names the
    fields whose values the throw-away sidecar must not share with an application's.
    """

    skip: str = ""
    connects: bool = True
    identities: frozenset[str] = frozenset()


def preflight_rule(manifest: Manifest) -> PreflightRule:
    """How a throw-away sidecar treats a resource."""
    if manifest["kind"] == "Subscription":
        return PreflightRule(skip=_BY_SCHEMA)
    if manifest["kind"] != "Component":
        return PreflightRule()
    kind = str(manifest["spec"]["type"]).lower()
    skip = _skip(kind, manifest["spec"].get("metadata") or ())
    identities = _IDENTITIES.get(kind, frozenset()) | (_CONSUMER if kind.startswith("pubsub.") else frozenset())
    return PreflightRule(skip, kind not in _SILENT, identities)


def _skip(kind: str, metadata: Iterable[Mapping[str, Any]]) -> str:
    category = kind.partition(".")[0]
    if category == "bindings":
        return "" if kind in _OUTPUT_ONLY or _is_output(metadata) else _TAKES_MESSAGES
    return "" if category in _TRIED_CATEGORIES else _UNKNOWN


def _is_output(metadata: Iterable[Mapping[str, Any]]) -> bool:
    said = [str(item.get("value", "")) for item in metadata if str(item["name"]).lower() == "direction"]
    return bool(said) and {part.strip().lower() for text in said for part in text.split(",")} == {"output"}


def preflight_copy(manifest: Manifest, app_id: str) -> Manifest:
    """The copy of a resource for the throw-away sidecar of this app id, and for no other."""
    match manifest["kind"]:
        case "Configuration":
            # With it a sidecar registers itself, possibly under the application's own name.
            spec = {key: value for key, value in (manifest.get("spec") or {}).items() if key != "nameResolution"}
            return {**manifest, "spec": spec}
        case "Component":
            return {**manifest, "spec": _copied_spec(manifest, app_id), "scopes": [app_id]}
        case _:
            return {**manifest, "scopes": [app_id]}


def _copied_spec(manifest: Manifest, app_id: str) -> dict[str, Any]:
    spec: dict[str, Any] = dict(manifest["spec"])
    # With it a sidecar would live on without the component, and nobody would hear why.
    spec.pop("ignoreErrors", None)
    identities = preflight_rule(manifest).identities
    items = spec.get("metadata") or ()
    spec["metadata"] = [_renamed(item, app_id) if str(item["name"]).lower() in identities else item for item in items]
    return spec


def _renamed(item: Mapping[str, Any], app_id: str) -> dict[str, Any]:
    """The name begins as before, because a broker may allow names by their beginning."""
    known = item.get("value")
    return {"name": item["name"], "value": f"{known}-{app_id}" if known else app_id}
