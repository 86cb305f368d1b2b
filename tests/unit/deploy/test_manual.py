"""The man page from the reference of the command line."""

from deploy.debian.manual import man_page

REFERENCE = """# Reference

## governor other

Not shown.

## governor runtime-proxy

Relay calls, and let plugins `change` them.

More text
of it.

```
governor runtime-proxy [OPTIONS]
```

- `--log-level LEVEL`: Minimum level. [default: info]
- `--help`: Show this.

## governor runtime-proxy lint

.Check files.
"""


def test_the_page_has_the_proxy_and_its_commands_only() -> None:
    assert man_page(REFERENCE, "1.2") == "\n".join(
        [
            '.TH GOVERNOR-RUNTIME-PROXY 8 "" "Runtime Governor 1.2"',
            ".SH NAME",
            "governor-runtime-proxy \\- Relay calls, and let plugins change them",
            ".SH DESCRIPTION",
            ".PP",
            "Relay calls, and let plugins change them.",
            ".PP",
            "More text of it.",
            ".PP",
            ".nf",
            "governor runtime\\-proxy [OPTIONS]",
            ".fi",
            ".TP",
            "\\fB\\-\\-log\\-level LEVEL\\fR",
            "Minimum level. [default: info]",
            ".TP",
            "\\fB\\-\\-help\\fR",
            "Show this.",
            ".SH LINT",
            ".PP",
            "\\&.Check files.",
            "",
        ]
    )
