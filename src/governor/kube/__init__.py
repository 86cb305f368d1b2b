"""Kubernetes mechanism for agent and reconciler: client, reflector, ordered apply, readiness, leader election.

It contains no product noun and could be released as a library. It returns small structs, which programs turn into
conditions.
"""
