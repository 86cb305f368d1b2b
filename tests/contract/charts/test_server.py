"""The server's chart: its settings are those of the server."""

from pathlib import Path

import pytest

from governor.process.settings import load
from governor.server.settings import Settings
from tests.contract.charts.bed import SERVER, Helm, by_kind
from tests.contract.charts.test_charts import CASES


@pytest.mark.parametrize("case", CASES[SERVER])
def test_the_server_accepts_its_settings(helm: Helm, tmp_path: Path, case: str) -> None:
    text = by_kind(SERVER.render(helm, *CASES[SERVER][case]))["ConfigMap"]["data"]["server.yaml"]
    (tmp_path / "sealing.key").write_text("00" * 32)
    file = tmp_path / "server.yaml"
    file.write_text(text.replace("/etc/governor/sealing", str(tmp_path)))

    taken = load(Settings, "server", environ={}, config=file)

    assert (taken.sealing_key is None) == (case != "existing-key")
    assert (taken.tls_certificate is None) == (case != "tls-from-secret")
    assert taken.pin_authority == (case != "ingress")
    assert {name for name in taken.tls_names if "192" in name} == ({"192.0.2.10"} if "elsewhere" in case else set())
