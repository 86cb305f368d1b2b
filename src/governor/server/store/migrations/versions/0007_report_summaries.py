"""Summaries of reports in the states of runtimes, and what orders reports as columns."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns. The server derives the summaries when it starts."""
    for column in (
        sa.Column("reported", sa.Integer),
        sa.Column("report_attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("report_n", sa.Integer, nullable=False, server_default="0"),
        sa.Column("condition", sa.LargeBinary),
        sa.Column("restraint", sa.LargeBinary),
        sa.Column("reason", sa.String, nullable=False, server_default=""),
        sa.Column("until", sa.BigInteger),
        sa.Column("acknowledged", sa.Integer, nullable=False, server_default="0"),
        sa.Column("acknowledged_revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("acknowledged_profiles", sa.LargeBinary),
        sa.Column("acknowledged_version", sa.Integer),
        sa.Column("acknowledged_time", sa.BigInteger),
    ):
        op.add_column("runtime_states", column)
    for name in ("attempt", "session", "n"):
        op.add_column("reports", sa.Column(name, sa.Integer))
    op.add_column("reports", sa.Column("fingerprint", sa.String))
    _fill_order()


def _fill_order() -> None:
    connection = op.get_bind()
    for runtime, sequence, body in connection.exec_driver_sql("SELECT runtime, sequence, body FROM reports").all():
        report = json.loads(body)["value"]
        order = {name: report[name] for name in ("attempt", "session", "n")}
        connection.execute(
            sa.text(
                "UPDATE reports SET attempt = :attempt, session = :session, n = :n "
                "WHERE runtime = :runtime AND sequence = :sequence"
            ),
            {"runtime": runtime, "sequence": sequence, **order},
        )
