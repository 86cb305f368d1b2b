"""A package, so that pytest ends package-scoped fixtures after its last test."""
