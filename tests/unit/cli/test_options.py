from governor.cli.options import next_step
from governor.errors import GovernorError, Kind


def test_a_rejected_token_suggests_the_token_option() -> None:
    step = next_step(GovernorError(Kind.UNAUTHENTICATED, "token-refused", "the token is not known"))
    assert "--token-file" in step


def test_an_untrusted_certificate_suggests_the_ca_option_and_not_the_token_option() -> None:
    step = next_step(GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", "the certificate is not trusted"))
    assert "--ca-file" in step
    assert "--token-file" not in step
