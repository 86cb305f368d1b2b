"""Values that all layers share: secrets, trees, paths, digests, diffs, selectors, text output, validation messages.

A *tree* is plain JSON data whose leaves may also be ``Sealed`` or ``Secret``. No product nouns, no I/O.
"""
