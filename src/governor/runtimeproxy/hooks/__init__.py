"""Hooked calls: hook requests to plugins, merging of their responses, and the request that the runtime receives."""
