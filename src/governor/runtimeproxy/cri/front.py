"""Composition of kubelet's side for the Container Runtime Interface."""

from logging import getLogger

from governor.runtimeproxy.cri.connections import PluginHooks
from governor.runtimeproxy.cri.messages import CriCodec
from governor.runtimeproxy.cri.runtime import Runtime
from governor.runtimeproxy.cri.splice import Splice
from governor.runtimeproxy.front import Front, Parts, Serving
from governor.runtimeproxy.metrics import observe_windows
from governor.runtimeproxy.ops.watchdog import probe


def cri_front(runtime_path: str) -> Front:
    """Return kubelet's side for a runtime at a socket."""
    # Its debug log contains every header field, including secrets.
    getLogger("hpack").setLevel("WARNING")
    return Front(Runtime(runtime_path), CriCodec(), _serve, probe)


def _serve(parts: Parts) -> Serving:
    hooks = PluginHooks(parts.handlers, parts.dispatcher, parts.metrics, parts.tap, parts.records)
    splice = Splice(parts.endpoint, parts.upstreams, hooks)
    hooks.notified = splice.notified
    observe_windows(parts.registry, splice.flow_controls)
    return Serving(splice, hooks.audit, hooks.tap_changed)
