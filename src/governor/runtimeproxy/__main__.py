"""The runtime proxy in a process of its own; the command ``governor runtime-proxy`` becomes this."""

import sys

from governor.runtimeproxy import without_tls


def run() -> int:
    """Run to the end; the exit code."""
    without_tls.install()
    # Everything else may import ssl.
    from governor.errors import GovernorError  # noqa: PLC0415
    from governor.process.child.exec import settings_from  # noqa: PLC0415
    from governor.process.exit_codes import EXIT_CODE, describe  # noqa: PLC0415
    from governor.runtimeproxy.main import main  # noqa: PLC0415
    from governor.runtimeproxy.settings import Settings  # noqa: PLC0415

    try:
        return main(settings_from(Settings, sys.argv[1:]))
    except GovernorError as error:
        sys.stderr.write("\n".join(describe(error)) + "\n")
        return EXIT_CODE[error.kind]


if __name__ == "__main__":
    sys.exit(run())
