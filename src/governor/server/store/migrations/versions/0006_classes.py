"""Bundles by digest, drafts, and one row with the state of each runtime."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the tables, move the resources of deliveries into bundles, and derive the states."""
    op.create_table(
        "bundles",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("resources", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "drafts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("apply", sa.LargeBinary, nullable=False),
        sa.Column("profiles", sa.LargeBinary, nullable=False),
        sa.Column("windows", sa.LargeBinary, nullable=False),
        sa.Column("hold", sa.LargeBinary),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("members", sa.LargeBinary, nullable=False),
        sa.Column("issued", sa.Integer, nullable=False),
    )
    _create_states()
    op.add_column("deliveries", sa.Column("profiles", sa.LargeBinary))
    op.add_column("deliveries", sa.Column("runtime_version", sa.Integer))
    connection = op.get_bind()
    connection.exec_driver_sql(
        "INSERT INTO bundles (digest, resources) SELECT digest, resources FROM deliveries WHERE true "
        "ON CONFLICT DO NOTHING"
    )
    _split_documents(connection)
    _fill_states(connection)
    for column in ("resources", "documents"):
        op.drop_column("deliveries", column)


def _create_states() -> None:
    op.create_table(
        "runtime_states",
        sa.Column("runtime", sa.String, primary_key=True),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("apply", sa.LargeBinary, nullable=False),
        sa.Column("windows", sa.LargeBinary),
        sa.Column("hold", sa.LargeBinary),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("present", sa.LargeBinary, nullable=False),
        sa.Column("attempts", sa.LargeBinary, nullable=False),
        sa.Column("verified", sa.Integer, nullable=False),
    )


def _split_documents(connection: sa.Connection) -> None:
    """Write the versions of profiles, which runtimes share, and that of the runtime into columns of their own."""
    statement = "SELECT runtime, sequence, documents FROM deliveries WHERE documents IS NOT NULL"
    for runtime, sequence, documents in connection.exec_driver_sql(statement).all():
        versions = json.loads(documents)["value"]
        own = versions.pop(f"Runtime/{runtime}", None)
        values = {"profiles": _encode(versions), "version": own, "runtime": runtime, "sequence": sequence}
        connection.execute(
            sa.text(
                "UPDATE deliveries SET profiles = :profiles, runtime_version = :version "
                "WHERE runtime = :runtime AND sequence = :sequence"
            ),
            values,
        )


def _fill_states(connection: sa.Connection) -> None:
    statement = (
        "SELECT d.*, r.verified, r.acknowledged FROM deliveries d LEFT JOIN reports r "
        "ON r.runtime = d.runtime AND r.sequence = d.sequence ORDER BY d.runtime, d.sequence"
    )
    newest: dict[str, Any] = {}
    for row in connection.exec_driver_sql(statement).mappings():
        if row["runtime"] != newest.get("runtime"):
            _insert(connection, newest)
            newest = {"present": set(), "attempts": {}, "verified": 0}
        newest |= {name: row[name] for name in _COPIED}
        if row["verified"] is not None:
            newest["verified"], newest["present"] = row["sequence"], set()
        newest["present"] |= set(map(_ref, json.loads(row["resources"])["value"]))
        if row["attempt"] > 1 or row["acknowledged"] == 0:
            attempts = newest["attempts"]
            attempts[row["digest"]] = max(row["attempt"], attempts.get(row["digest"], 0))
    _insert(connection, newest)


_COPIED = ("runtime", "sequence", "id", "attempt", "revision", "digest", "apply", "windows", "hold", "time")
_STATE = (*_COPIED, "present", "attempts", "verified")


def _insert(connection: sa.Connection, newest: dict[str, Any]) -> None:
    if not newest:
        return
    present = [{"kind": kind, "namespace": space, "name": name} for kind, space, name in sorted(newest["present"])]
    values = newest | {"present": _encode(present), "attempts": _encode(newest["attempts"])}
    columns = ", ".join(_STATE)
    named = ", ".join(f":{name}" for name in _STATE)
    connection.execute(sa.text(f"INSERT INTO runtime_states ({columns}) VALUES ({named})"), values)  # noqa: S608


def _ref(manifest: dict[str, Any]) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace") or "", metadata["name"]


def _encode(value: Any) -> bytes:
    return json.dumps({"value": value, "format": 1}, separators=(",", ":")).encode()
