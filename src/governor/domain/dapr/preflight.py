"""Preflight rules: which resources a throw-away sidecar loads, and the copy that it gets of each.

A throw-away sidecar loads a change before any application's sidecar does. It must not consume messages, take over an
application's connection or be discoverable; ``docs/reference/preflight.md`` gives the reasons. Running it is excluded.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from governor.values.trees import Manifest

_CONSUMES_MESSAGES: Final = "an input binding would consume messages"
_UNKNOWN: Final = "the start-up behaviour of this component category is unknown"
_BY_SCHEMA: Final = "a Subscription is checked only against its schema"

_LOADED_CATEGORIES: Final = frozenset(
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
"""Bindings that cannot be inputs. Any other may be one unless its metadata sets ``direction: output``."""

_WITHOUT_CONNECTION: Final = frozenset(
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
"""Types that open no connection when they start, so that a successful start proves little about their settings."""

_CONSUMER: Final = frozenset({"consumerid"})
"""Every pub/sub component has one; it defaults to the app id."""
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
"""The fields that identify a client to a broker, in lower case, by type: elsewhere a client id is a credential."""

_HOT_RELOAD: Final = "HotReload"


class PreflightRule(msgspec.Struct, frozen=True):
    """How preflight treats one resource: it is skipped if ``skip`` gives a reason, loaded otherwise.

    ``connects`` is False for types that open no connection when they start. ``identities`` names the fields whose
    values the throw-away sidecar must not share with an application's sidecar.
    """

    skip: str = ""
    connects: bool = True
    identities: frozenset[str] = frozenset()


def preflight_rule(manifest: Manifest) -> PreflightRule:
    """Return the preflight rule of a resource."""
    if manifest["kind"] == "Subscription":
        return PreflightRule(skip=_BY_SCHEMA)
    if manifest["kind"] != "Component":
        return PreflightRule()
    kind = str(manifest["spec"]["type"]).lower()
    skip = _skip(kind, manifest["spec"].get("metadata") or ())
    identities = _IDENTITIES.get(kind, frozenset()) | (_CONSUMER if kind.startswith("pubsub.") else frozenset())
    return PreflightRule(skip, kind not in _WITHOUT_CONNECTION, identities)


def _skip(kind: str, metadata: Iterable[Mapping[str, Any]]) -> str:
    category = kind.partition(".")[0]
    if category == "bindings":
        return "" if kind in _OUTPUT_ONLY or _is_output(metadata) else _CONSUMES_MESSAGES
    return "" if category in _LOADED_CATEGORIES else _UNKNOWN


def _is_output(metadata: Iterable[Mapping[str, Any]]) -> bool:
    directions = [str(item.get("value", "")) for item in metadata if str(item["name"]).lower() == "direction"]
    return bool(directions) and {part.strip().lower() for text in directions for part in text.split(",")} == {"output"}


def preflight_copy(manifest: Manifest, app_id: str) -> Manifest:
    """Return the copy of a resource that only the throw-away sidecar of this app id loads."""
    match manifest["kind"]:
        case "Configuration":
            # With nameResolution a sidecar registers itself, possibly under the application's name.
            spec = {key: value for key, value in (manifest.get("spec") or {}).items() if key != "nameResolution"}
            return {**manifest, "spec": _without_reload(spec)}
        case "Component":
            return {**manifest, "spec": _copied_spec(manifest, app_id), "scopes": [app_id]}
        case _:
            return {**manifest, "scopes": [app_id]}


def empty_configuration(app_id: str) -> Manifest:
    """Return what a throw-away sidecar loads if there is no Configuration to copy."""
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Configuration",
        "metadata": {"name": app_id},
        "spec": _without_reload({}),
    }


def _without_reload(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a Configuration's spec with hot reload off: nothing is reloaded, and closing the watch would take long."""
    others = [each for each in spec.get("features") or () if each.get("name") != _HOT_RELOAD]
    return {**spec, "features": [*others, {"name": _HOT_RELOAD, "enabled": False}]}


def _copied_spec(manifest: Manifest, app_id: str) -> dict[str, Any]:
    spec: dict[str, Any] = dict(manifest["spec"])
    # With ignoreErrors the sidecar would start without the component and hide the failure.
    spec.pop("ignoreErrors", None)
    identities = preflight_rule(manifest).identities
    items = spec.get("metadata") or ()
    spec["metadata"] = [_renamed(item, app_id) if str(item["name"]).lower() in identities else item for item in items]
    return spec


def _renamed(item: Mapping[str, Any], app_id: str) -> dict[str, Any]:
    """Append the app id to a client name; the prefix stays, because a broker may authorise names by prefix."""
    value = item.get("value")
    return {"name": item["name"], "value": f"{value}-{app_id}" if value else app_id}
