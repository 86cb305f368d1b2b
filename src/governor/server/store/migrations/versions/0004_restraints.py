"""The maintenance windows and the hold that a delivery carries."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("deliveries", sa.Column("windows", sa.LargeBinary))
    op.add_column("deliveries", sa.Column("hold", sa.LargeBinary))
