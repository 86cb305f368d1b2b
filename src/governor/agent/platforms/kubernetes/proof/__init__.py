"""Proof by the sidecars: how they are asked, and what their answers show."""
