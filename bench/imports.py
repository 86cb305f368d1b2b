"""Measure each dependency's import time and resident memory, in fresh interpreters, as the median of several rounds.

python -m bench.imports
"""

import statistics
import subprocess
import sys

ROUNDS = 5
MODULES = {
    "nothing": "",
    "asyncio": "asyncio",
    "msgspec": "msgspec",
    "uvloop": "uvloop",
    "structlog": "structlog",
    "click": "click",
    "rich": "rich.live, rich.table",
    "h11": "h11",
    "PyYAML": "yaml",
    "jsonschema-rs": "jsonschema_rs",
    "cryptography": "cryptography.hazmat.primitives.asymmetric.ed25519, cryptography.hazmat.primitives.ciphers.aead",
    "PyJWT": "jwt",
    "aiohttp": "aiohttp",
    "Starlette": "starlette.applications, starlette.routing",
    "uvicorn + httptools": "uvicorn, httptools",
    "SQLAlchemy Core": "sqlalchemy",
    "alembic": "alembic.command, alembic.config",
}
PROGRAM = """
import time, resource
start = time.perf_counter()
{statement}
took = time.perf_counter() - start
pages = int(open("/proc/self/statm").read().split()[1])
print(took * 1000, pages * resource.getpagesize() / 1048576)
"""


def measure(modules: str) -> tuple[float, float]:
    """Return milliseconds and MiB of one fresh interpreter."""
    statement = f"import {modules}" if modules else "pass"
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)], check=True, capture_output=True, text=True
    ).stdout
    milliseconds, mebibytes = map(float, output.split())
    return milliseconds, mebibytes


def main() -> None:
    """Measure all modules in interleaved rounds, so that a slow period affects them equally, and print a table."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in MODULES}
    for _ in range(ROUNDS):
        for name, modules in MODULES.items():
            samples[name].append(measure(modules))
    base_mib = statistics.median(mib for _, mib in samples["nothing"])
    print("| dependency | import ms | MiB above an empty interpreter |")
    print("|---|---|---|")
    for name, pairs in samples.items():
        took = statistics.median(ms for ms, _ in pairs)
        mib = statistics.median(mib for _, mib in pairs) - base_mib
        print(f"| {name} | {took:.0f} | {mib:.1f} |")


if __name__ == "__main__":
    main()
