"""gRPC over the proxy's own HTTP/2: message framing, status codes, deadlines, and a unary client."""
