"""Roles of tokens."""

import enum


class Role(enum.StrEnum):
    """The permissions of a token; each role includes those listed before it."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"
