"""Hooked calls in no protocol: questions to plugins, merging of their changes, and the request that results."""
