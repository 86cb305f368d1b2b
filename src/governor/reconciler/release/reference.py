"""The reference of a module on a cluster: its chart and its values. Objects are removed only if it changes.

Capabilities of the cluster and answers to ``lookup`` are not part of it. Values from Secrets must not be guessed from
what is published, so that the digest of the values has a key, which is in a Secret of the hub namespace.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.objects import Object
from governor.reconciler.core_kinds import SECRETS
from governor.reconciler.kinds.module_instance import Applied, ModuleInstanceSpec
from governor.reconciler.render.request import Layer
from governor.values.secret import Secret

KEY_SECRET: Final = "governor-reconciler-key"  # noqa: S105 - a name
_KEY: Final = "key"
_KEY_BYTES: Final = 32


def values_digest(spec: ModuleInstanceSpec, layers: Sequence[Layer], key: Secret) -> str:
    """Return the keyed digest of everything that a user configures: all layers of values, names and namespace."""
    keyed = hmac.new(key.reveal().encode(), digestmod=hashlib.sha256)
    for text in (spec.release_name, spec.namespace, *(each.text.reveal() for each in layers)):
        encoded = text.encode()
        keyed.update(f"{len(encoded)}:".encode() + encoded)
    return f"sha256:{keyed.hexdigest()}"


def is_same(applied: Applied | None, chart_digest: str, digest_of_values: str) -> bool:
    """Return whether this reference was applied."""
    return applied is not None and (applied.chart_digest, applied.values_digest) == (chart_digest, digest_of_values)


def reference_text(applied: Applied) -> str:
    """Return a reference as one digest, for records."""
    text = f"{applied.chart_digest}/{applied.values_digest}"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


async def ensure_key(hub: Client, namespace: str, manager: str) -> Secret:
    """Return the key of the hub; create it if there is none."""
    if found := await find_key(hub, namespace):
        return found
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    metadata = {"name": KEY_SECRET, "namespace": namespace}
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {_KEY: key}}
    try:
        return _read(await hub.create(SECRETS, manifest, manager=manager))
    except GovernorError as error:
        if error.kind is not Kind.EXISTS:  # another replica was faster
            raise
    return _read(await hub.get(SECRETS, KEY_SECRET, namespace))


async def find_key(hub: Client, namespace: str) -> Secret | None:
    """Return the key of the hub, or None if there is none yet."""
    try:
        return _read(await hub.get(SECRETS, KEY_SECRET, namespace))
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return None


def _read(found: Object) -> Secret:
    key = (found.get("data") or {}).get(_KEY)
    if not key:
        message = f"the Secret {KEY_SECRET} has no key {_KEY}: delete it, and the reconciler creates it again"
        raise GovernorError(Kind.PRECONDITION, "digest-key", message)
    return Secret(str(key))
