"""Generates the reference of the REST API from the server's table of endpoints."""

import json
from pathlib import Path

from governor.server.api.openapi import document
from governor.server.api.routes import ENDPOINTS


def outputs() -> dict[Path, str]:
    """Return the OpenAPI document that the server serves."""
    return {Path("docs/reference/openapi.json"): json.dumps(document(ENDPOINTS), indent=1, sort_keys=True) + "\n"}
