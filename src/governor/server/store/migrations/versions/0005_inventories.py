"""What agents find in the namespaces of their runtimes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "inventories",
        sa.Column("runtime", sa.String, primary_key=True),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
