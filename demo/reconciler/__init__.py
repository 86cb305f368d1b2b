"""The scenario of `make demo-reconciler`: an empty cluster reconciles itself, and three modules in it."""
