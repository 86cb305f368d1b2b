"""What alembic executes around migrations: they run on the connection that was handed in."""

from alembic import context

from governor.server.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
context.run_migrations()
