"""The nouns that two or more programs share, each defined once, and the pure decisions about them.

Frozen structs and functions over values; no asyncio, no I/O. Nouns of a single program are defined in that program.
"""
