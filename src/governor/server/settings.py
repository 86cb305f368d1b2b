"""Settings of the server."""

from pathlib import Path
from typing import Annotated

import msgspec

from governor.errors import invalid
from governor.process.address import Address
from governor.process.telemetry.logging import Level
from governor.process.tls import is_loopback, require_tls
from governor.values.secret import Secret


class Settings(msgspec.Struct, frozen=True):
    """Settings by flag, environment and file."""

    listen: Annotated[Address, msgspec.Meta(description="Address of the API; port 0 chooses a free port.")] = Address(
        "127.0.0.1", 8420
    )
    health_listen: Annotated[
        Address, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 chooses a free port.")
    ] = Address("127.0.0.1", 8421)
    data_dir: Annotated[Path, msgspec.Meta(description="Directory for the database, the keys and the admin token.")] = (
        Path("governor-data")
    )
    public_url: Annotated[
        str, msgspec.Meta(description="URL at which agents reach the server; written into join tokens.")
    ] = ""
    tls_certificate: Annotated[
        Path | None,
        msgspec.Meta(description="PEM file with the certificate chain; alternatively set tls-names in the file."),
    ] = None
    tls_key: Annotated[Path | None, msgspec.Meta(description="PEM file with the private key of the certificate.")] = (
        None
    )
    tls_names: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Host names and addresses of certificates that the server issues from its own CA."),
    ] = ()
    pin_authority: Annotated[
        bool,
        msgspec.Meta(
            description="Pin the certificate's CA in join tokens; disable if agents connect through another CA."
        ),
    ] = True
    sealing_key: Annotated[
        Secret | None,
        msgspec.Meta(
            description="File with the key for sensitive values, 64 hexadecimal digits; generated if not set."
        ),
    ] = None
    poc_file: Annotated[
        Path | None,
        msgspec.Meta(description="File of the proof of concept to read runtimes from; re-read when it changes."),
    ] = None
    legacy_open: Annotated[
        bool, msgspec.Meta(description="Serve the proof of concept's API without a token; on loopback only.")
    ] = False
    keep_deliveries: Annotated[
        int,
        msgspec.Meta(ge=1, description="Deliveries kept for each runtime; older ones are pruned every hour."),
    ] = 20
    max_watches: Annotated[
        int, msgspec.Meta(ge=1, description="Maximum number of open watches; further agents are rejected.")
    ] = 15_000
    enrolments_per_minute: Annotated[
        int, msgspec.Meta(ge=1, description="Maximum rate of enrolments; further ones are rejected.")
    ] = 6_000
    log_level: Annotated[Level, msgspec.Meta(description="Minimum level of log events.")] = "info"

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise invalid("settings", "tls-certificate and tls-key must be set together")
        if self.tls_certificate and self.tls_names:
            raise invalid("settings", "set either tls-certificate, or tls-names to have certificates issued, not both")
        if self.legacy_open and not is_loopback(self.listen.host):
            raise invalid(
                "settings", "legacy-open reveals secrets to any client that can connect: listen on loopback only"
            )
        require_tls(self.listen.host, protected=self.uses_tls)

    @property
    def uses_tls(self) -> bool:
        """Return whether the API is served with TLS."""
        return self.tls_certificate is not None or bool(self.tls_names)
