"""Hooks of Helm: objects that run at an event of a module, such as pre-install.

``plan`` and ``records`` decide: order, delete policies, what a hook needs next. ``run`` acts. Which event is due, and
which hooks belong to it, is decided in ``steps``; hooks are rendered in ``render``.
"""

from governor.reconciler.hooks.plan import hooks_for
from governor.reconciler.hooks.run import HookContext, HookFailed, HookResult, HooksDone, HooksWaiting, run_hooks

__all__ = ["HookContext", "HookFailed", "HookResult", "HooksDone", "HooksWaiting", "hooks_for", "run_hooks"]
