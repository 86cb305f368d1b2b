"""Where a runtime's applications run; one package for each platform, knowing nothing of the others."""
