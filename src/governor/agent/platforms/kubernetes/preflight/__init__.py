"""Preflight in a cluster: throw-away pods that load copies of a change before any application's sidecar does.

``agent.preflight`` and ``verification.preflight_plan`` decide, as on every platform; here is what a cluster adds.
"""
