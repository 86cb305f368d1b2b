"""How any program of ours lives: start and stop, settings, logs, health, clock, child processes, limits, work.

No product nouns live here: every module could serve an unrelated program. What a program does is in its own package.
"""
