"""Giving memory back to the operating system."""

import ctypes


def trim() -> None:
    """Return unused memory of the C library's heap; a no-op if the C library cannot. Blocking, for milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
