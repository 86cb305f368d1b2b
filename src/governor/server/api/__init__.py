"""The REST API: one table of endpoints defines routing, access and the OpenAPI document.

Handlers translate between requests and services; decisions are made elsewhere.
"""
