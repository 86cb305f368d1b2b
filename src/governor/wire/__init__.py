"""Envelopes between our own programs: what travels, how it is framed and signed. No sockets here."""
