"""What a person at the command line may do about an error whose message alone does not say it."""

from typing import Final

from governor.errors import GovernorError, Kind

_BY_CODE: Final = {
    "tls-untrusted": "name the authority of the server with --ca-file",
    "unreachable": "name another server with --server or GOVERNOR_SERVER",
}
_BY_KIND: Final = {
    Kind.UNAUTHENTICATED: "name a file with a valid token with --token-file or GOVERNOR_TOKEN_FILE",
    Kind.DENIED: "use a token with a higher role; `governor token create` makes one",
}


def next_step(error: GovernorError) -> str:
    """The next step, or nothing."""
    return _BY_CODE.get(error.code) or _BY_KIND.get(error.kind, "")
