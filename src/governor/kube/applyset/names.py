"""What may be the name of an object, as far as it must be known before a server is asked."""

import re
from typing import Final

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_FORBIDDEN: Final = re.compile(r"[/%\x00-\x1f\x7f\ud800-\udfff]")


def is_name(text: str) -> bool:
    """Whether it can be one part of a request path, which every name becomes."""
    return bool(text) and text not in {".", ".."} and len(text) <= 253 and not _FORBIDDEN.search(text)


def is_namespace(text: str) -> bool:
    """Whether it is a DNS label."""
    return _NAMESPACE.fullmatch(text) is not None
