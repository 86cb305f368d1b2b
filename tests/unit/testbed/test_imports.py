"""Set-up runs the recipes before any library is installed."""

import subprocess
import sys

from toolchain.repository import REPOSITORY


def test_recipes_need_only_the_standard_library() -> None:
    program = f"import sys; sys.path.append({str(REPOSITORY)!r}); import testbed.__main__, tools.setup"
    argv = [sys.executable, "-I", "-S", "-c", program]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
