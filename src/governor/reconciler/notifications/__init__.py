"""Notifications of escalated failures: what they contain, and the web servers that receive them.

Which failure is escalated is decided in ``states.escalation``; ``controllers.notifications`` delivers.
"""
