"""The identity of the store and of each delivery, and reports in format 2."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table, add the columns and convert the reports."""
    op.create_table(
        "store_identity",
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("starts", sa.Integer, nullable=False),
    )
    op.add_column("deliveries", sa.Column("incarnation", sa.String, nullable=False, server_default=""))
    op.add_column("deliveries", sa.Column("id", sa.String, nullable=False, server_default=""))
    op.add_column("deliveries", sa.Column("documents", sa.LargeBinary))
    _convert_reports()


def _convert_reports() -> None:
    connection = op.get_bind()
    reports = sa.table("reports", sa.column("runtime"), sa.column("sequence"), sa.column("body", sa.LargeBinary))
    for runtime, sequence, body in connection.execute(sa.select(reports)).all():
        stored = json.loads(body)
        stored["value"] = _format_2(stored["value"])
        statement = reports.update().where(reports.c.runtime == runtime, reports.c.sequence == sequence)
        connection.execute(statement.values(body=json.dumps(stored, separators=(",", ":")).encode()))


def _format_2(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report of format 1 in format 2; no session of the server is known for it."""
    converted = {name: value for name, value in report.items() if name != "boot"}
    workloads = [
        {
            **each,
            "workload": {"namespace": "", "kind": "Sidecar", "name": each["workload"]},
            "instances": {"total": 1, **({each["state"]: 1} if each["state"] in _COUNTED else {})},
        }
        for each in report["workloads"]
    ]
    return {**converted, "session": 0, "workloads": workloads, "format": 2}


_COUNTED = ("verified", "failed", "unproven")
