"""The size of list pages: few requests for small objects, small pages for large ones. No I/O."""

from typing import Final

from governor.errors import GovernorError, Kind

TOO_LARGE: Final = "kube-answer-size"
"""Error code of a response above the size limit."""
FIRST_LIMIT: Final = 100
"""The first page is the only one whose objects have an unknown size; an object may have 1.5 MB."""
MAX_LIMIT: Final = 500
_TARGET_BYTES: Final = 4 * 1024 * 1024
_MIN_TARGET_BYTES: Final = 64 * 1024
_MAX_GROWTH: Final = 5
"""The next objects may be larger than those before them."""
_SHRINK: Final = 10


class PageSize:
    """The ``limit`` of the next page of one list."""

    __slots__ = ("_target_bytes", "limit")

    def __init__(self) -> None:
        self.limit = FIRST_LIMIT
        self._target_bytes = _TARGET_BYTES

    def observed(self, objects: int, size: int) -> None:
        """Adapt the limit to a page of ``size`` bytes that was received."""
        if objects:
            fitting = self._target_bytes * objects // max(size, 1)
            self.limit = max(1, min(fitting, self.limit * _MAX_GROWTH, MAX_LIMIT))

    def shrink(self, error: GovernorError) -> bool:
        """Lower the limit if the page failed because it was too large or slow; return whether to request it again."""
        if self.limit == 1 or (error.code != TOO_LARGE and error.kind is not Kind.DEADLINE):
            return False
        self.limit = max(1, self.limit // _SHRINK)
        self._target_bytes = max(_MIN_TARGET_BYTES, self._target_bytes // _SHRINK)
        return True
