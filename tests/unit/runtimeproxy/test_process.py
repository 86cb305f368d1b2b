"""The proxy's own process: modules that libraries import and it does not use."""

import json
import subprocess
import sys

_LOAD = """
import json, sys
from governor.runtimeproxy import __main__
__main__._replace_modules()
import uvloop
import governor.runtimeproxy.main
import governor.runtimeproxy.cri.front
import governor.runtimeproxy.docker.front
import governor.runtimeproxy.policies.source
"""


def output_of(program: str) -> object:
    """Return what a program prints, as JSON, that runs in the proxy's process after all of its modules are loaded."""
    command = [sys.executable, "-P", "-c", _LOAD + program]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_modules_that_are_not_used_are_not_loaded() -> None:
    unused = {"_ssl", "google.protobuf.text_format", "google.protobuf.internal.decoder", "typing_extensions"}
    loaded = output_of("print(json.dumps([name for name, module in sys.modules.items() if module is not None]))")
    assert isinstance(loaded, list)
    assert "governor.runtimeproxy.http2.relay" in loaded
    assert unused & set(loaded) == set()


def test_a_deferred_module_is_loaded_with_its_first_use() -> None:
    program = """
import ipaddress
before = hasattr(ipaddress, "__file__")
is_loopback = ipaddress.ip_address("::1").is_loopback
print(json.dumps([before, is_loopback, hasattr(sys.modules["ipaddress"], "__file__")]))
"""
    assert output_of(program) == [False, True, True]


def test_a_module_that_was_imported_before_is_an_error() -> None:
    program = "import ssl; from governor.runtimeproxy import __main__; __main__._replace_modules()"
    ended = subprocess.run([sys.executable, "-P", "-c", program], check=False, capture_output=True, text=True)
    assert "imported before they could be replaced: ssl" in ended.stderr
