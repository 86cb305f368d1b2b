"""All tests. Directories with package-scoped fixtures are packages, and so are those above them."""
