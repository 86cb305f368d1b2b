"""The REST API over HTTP: one table of endpoints, from which routing, access and the OpenAPI document are made.

Handlers translate between requests and the server's parts; they decide nothing.
"""
