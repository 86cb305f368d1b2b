"""Recipes of servers that are built from source or unpacked from Debian. Set-up runs them: standard library only."""
