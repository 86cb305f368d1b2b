"""Durable state of the agent that every platform needs, in one of two homes: files, or Secrets in a cluster.

State of one platform only, such as the journal of files, is stored by that platform.
"""
