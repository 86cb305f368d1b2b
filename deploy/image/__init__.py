"""The governor's own container image, assembled from locked parts without a registry.

``assemble`` is the command, ``layers`` what the image is made of, ``interpreter`` the part of Python that it needs.
"""
