"""Runtime Governor: keeps a fleet of application runtimes in the state their owner asked for, and proves it.

The packages are layers; ARCHITECTURE.md describes them and import-linter enforces them.
"""

__version__ = "0.2.0.dev0"
