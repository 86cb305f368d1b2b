"""The reflector: list and watch one kind, and keep a typed, indexed store of it."""
