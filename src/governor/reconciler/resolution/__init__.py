"""From Installations, Channels, Modules and Clusters to the desired ModuleInstances. Pure.

What cannot be resolved is a ``Problem`` with its reason; it never makes anything be removed.
"""
