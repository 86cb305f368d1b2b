"""Envelopes between our programs: message bodies, framing and signatures. No sockets."""
