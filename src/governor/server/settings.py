"""The settings of the server."""

from pathlib import Path
from typing import Annotated

import msgspec

from governor.errors import invalid
from governor.process.address import Address
from governor.process.telemetry.logging import Level
from governor.process.tls import is_loopback, require_tls
from governor.values.secret import Secret


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
        Path | None,
        msgspec.Meta(description="PEM file with the certificate and its chain; or give tls-names in the file."),
    ] = None
    tls_key: Annotated[Path | None, msgspec.Meta(description="PEM file with the key to the certificate.")] = None
    tls_names: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Names and addresses to make certificates for, by an authority of the server's own."),
    ] = ()
    pin_authority: Annotated[
        bool,
        msgspec.Meta(
            description="Write the authority of the certificate into join tokens; not if agents meet another one."
        ),
    ] = True
    sealing_key: Annotated[
        Secret | None,
        msgspec.Meta(
            description="File with the key for sensitive values, 64 hexadecimal digits; without it one is made."
        ),
    ] = None
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
        if self.tls_certificate and self.tls_names:
            raise invalid("settings", "give tls-certificate, or tls-names to have certificates made: not both")
        if self.legacy_open and not is_loopback(self.listen.host):
            raise invalid("settings", "legacy-open gives secrets to anybody who can connect: listen on loopback only")
        require_tls(self.listen.host, protected=self.speaks_tls)

    @property
    def speaks_tls(self) -> bool:
        """Whether the API is served with a certificate."""
        return self.tls_certificate is not None or bool(self.tls_names)
