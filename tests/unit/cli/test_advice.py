from governor.cli.advice import next_step
from governor.errors import GovernorError, Kind


def test_a_refused_token_leads_to_the_option_that_names_another() -> None:
    step = next_step(GovernorError(Kind.UNAUTHENTICATED, "token-refused", "the token is not known"))
    assert "--token-file" in step


def test_an_untrusted_server_leads_to_the_authority_and_not_to_the_token() -> None:
    step = next_step(GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", "the certificate is not trusted"))
    assert "--ca-file" in step
    assert "--token-file" not in step
