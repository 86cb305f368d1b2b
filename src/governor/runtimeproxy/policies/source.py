"""The directory of policies as a source of handlers: the only module of this package that the composition imports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.handlers import Handlers
from governor.runtimeproxy.policies.engine import PolicyHandler
from governor.runtimeproxy.policies.reader import Policies, reload

_CGROUP_V2: Final = Path("/sys/fs/cgroup/cgroup.controllers")

_log = logging.get_logger(__name__)


class PolicySource:
    """Keeps the policies in force in step with the content of their files."""

    def __init__(self, handlers: Handlers) -> None:
        self.policies = Policies()
        self._handlers = handlers

    def replace(self, contents: Mapping[str, bytes | OSError]) -> None:
        """Use the present content of the files."""
        before, self.policies = self.policies, reload(self.policies, contents, has_unified=has_cgroup_v2())
        for problem in sorted(set(self.policies.problems) - set(before.problems), key=str):
            _log.warning("policy file is invalid", problem=str(problem))
        if before.by_file != self.policies.by_file:
            _log.info("policies in force", policies=sorted(each.name for each in self.policies.all))
            self._handlers.replace("policies", [PolicyHandler(each) for each in self.policies.all])


def has_cgroup_v2() -> bool:
    """Return whether this node has the unified hierarchy only."""
    return _CGROUP_V2.exists()
