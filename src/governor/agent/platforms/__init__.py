"""Platforms that a runtime's applications run on: one package each, independent of the others."""
