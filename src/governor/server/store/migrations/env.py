"""Alembic's environment: runs migrations on the connection passed in the configuration."""

from alembic import context

from governor.server.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
context.run_migrations()
