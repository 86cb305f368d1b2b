"""Rendering of charts: requests and results, two renderers behind one port, a pool, and a cache.

``linked`` runs a program that contains the engine of Helm; ``helm_cli`` runs Helm itself, where that program is not
installed. Where charts come from is decided in ``charts``; what happens to the objects, in ``steps``.
"""
