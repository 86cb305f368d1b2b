"""Where documents come from besides people: files that the server reads itself and submits as changes.

A source has no road of its own: it submits to ``changes`` like everybody else, under its own name as the author.
"""
