"""Revoked keys of runtimes, which are rejected permanently."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "revoked_keys",
        sa.Column("key_id", sa.String, primary_key=True),
        sa.Column("runtime", sa.String, nullable=False),
        sa.Column("revoked", sa.BigInteger, nullable=False),
    )
