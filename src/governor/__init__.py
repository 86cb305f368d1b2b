"""Runtime Governor: keeps a fleet of application runtimes in the state their owner asked for, and proves it.

The packages below are layers; ARCHITECTURE.md names them and import-linter keeps them apart.
"""

__version__ = "0.1.0"
