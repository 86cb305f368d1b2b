"""What every program needs: start and stop, settings, logs, health, clock, child processes, flow control, reconciling.

It contains no product nouns: every module could serve an unrelated program. What a program does is in its own package.
"""
