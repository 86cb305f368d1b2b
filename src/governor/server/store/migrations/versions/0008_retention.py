"""What is pruned of a runtime's deliveries, and indexes for it and for the progress of revisions."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column and the indexes."""
    op.add_column("runtime_states", sa.Column("pruned", sa.Integer, nullable=False, server_default="0"))
    op.drop_index("ix_deliveries_revision", "deliveries")
    op.create_index("ix_deliveries_revision_runtime", "deliveries", ["revision", "runtime", "sequence"])
    op.create_index("ix_deliveries_digest", "deliveries", ["digest"])
