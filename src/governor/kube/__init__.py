"""The Kubernetes runtime that agent and reconciler stand on: client, reflector, ordered apply, readiness, election.

It knows clusters, objects and fields, and no noun of the product; it could leave as a library. Its results are its
own small structs, which programs turn into conditions.
"""
