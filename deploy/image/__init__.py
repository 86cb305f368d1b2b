"""The governor's container image, assembled from locked parts without a registry.

``assemble`` is the command, ``layers`` builds the layers, ``interpreter`` selects the parts of Python.
"""
