"""Hooked calls of any protocol: questions to plugins, merging of their changes, and the resulting request."""
