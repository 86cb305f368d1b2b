"""The settings of the server."""

from pathlib import Path
from typing import Annotated

import msgspec

from governor.errors import invalid
from governor.process.address import Address
from governor.process.logging import Level
from governor.process.tls import is_loopback, require_tls


class Settings(msgspec.Struct, frozen=True):
    """What can be set by flag, environment and file."""

    listen: Annotated[Address, msgspec.Meta(description="Where the API listens; port 0 chooses one.")] = Address(
        "127.0.0.1", 8420
    )
    health_listen: Annotated[Address, msgspec.Meta(description="Where /healthz, /readyz and /metrics listen.")] = (
        Address("127.0.0.1", 8421)
    )
    data_dir: Annotated[Path, msgspec.Meta(description="Directory of the database, the keys and the admin token.")] = (
        Path("governor-data")
    )
    public_url: Annotated[
        str, msgspec.Meta(description="The URL under which agents reach the server; written into join tokens.")
    ] = ""
    tls_certificate: Annotated[
        Path | None, msgspec.Meta(description="PEM file with the certificate and its chain.")
    ] = None
    tls_key: Annotated[Path | None, msgspec.Meta(description="PEM file with the key to the certificate.")] = None
    poc_file: Annotated[
        Path | None,
        msgspec.Meta(description="File of the proof of concept to take runtimes from, again when it changes."),
    ] = None
    legacy_open: Annotated[
        bool, msgspec.Meta(description="Answer the proof of concept's API without a token; on loopback only.")
    ] = False
    log_level: Annotated[Level, msgspec.Meta(description="How much is logged.")] = "info"

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise invalid("settings", "tls-certificate and tls-key belong together: give both or none")
        if self.legacy_open and not is_loopback(self.listen.host):
            raise invalid("settings", "legacy-open gives secrets to anybody who can connect: listen on loopback only")
        require_tls(self.listen.host, protected=self.tls_certificate is not None)
