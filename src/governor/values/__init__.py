"""What all layers share without product nouns: secrets, trees, paths, digests, diffs and label selectors.

A *tree* is plain JSON data whose leaves may also be ``Sealed`` or ``Secret``. Nothing here does I/O.
"""
