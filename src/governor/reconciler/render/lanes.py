"""Lanes: a release that has exceeded the time limit is rendered apart from all others, until it succeeds there."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from governor.errors import GovernorError
from governor.reconciler.render.request import Request

TIMEOUT_CODE: Final = "render-timeout"
_REMEMBERED: Final = 10_000


class Lanes:
    """The releases that have exceeded the time limit."""

    def __init__(self) -> None:
        self._slow: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    @contextmanager
    def choose(self, request: Request) -> Iterator[bool]:
        """Yield whether a release belongs in the slow lane, and remember how its rendering ends."""
        key = (request.chart_digest, request.namespace, request.release_name)
        try:
            yield key in self._slow
        except GovernorError as error:
            if error.code == TIMEOUT_CODE:
                self._remember(key)
            raise
        self._slow.pop(key, None)

    def _remember(self, key: tuple[str, str, str]) -> None:
        self._slow[key] = None
        if len(self._slow) > _REMEMBERED:
            self._slow.popitem(last=False)
