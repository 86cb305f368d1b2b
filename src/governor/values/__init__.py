"""What all layers share without product nouns: secrets, trees, paths, digests, diffs, selectors, reading structs.

A *tree* is plain JSON data whose leaves may also be ``Sealed`` or ``Secret``. Nothing here does I/O.
"""
