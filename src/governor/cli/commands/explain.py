"""``explain``: one line for each field of a runtime's configuration, with its value and the profile that set it."""

from collections.abc import Iterable, Iterator

import click
import msgspec

from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.errors import GovernorError, Kind
from governor.process.options import output_option
from governor.values.printing import Format, machine_text, table
from governor.wire.rest import FieldExplanation, ResourceExplanation, RuntimeExplanation


@click.command()
@click.argument("runtime")
@click.argument("resource", required=False, metavar="[KIND/NAME]")
@output_option
@connection_options()
def explain(runtime: str, resource: str | None, output: Format) -> None:
    """Show which profile set each field of RUNTIME's configuration, or of one of its resources.

    Name a resource by KIND/NAME or KIND/NAMESPACE/NAME. Fields that a profile removed are shown as removed; sensitive
    values are masked.
    """
    found = call_server(lambda client: client.explain(runtime))
    shown = found if resource is None else select_resource(found, resource)
    click.echo(explanation_text(shown) if output == "table" else machine_text(shown, output))


def select_resource(found: RuntimeExplanation, resource: str) -> RuntimeExplanation:
    """Return one resource, named KIND/NAME or KIND/NAMESPACE/NAME ignoring case, without the apply policy."""
    selected = tuple(each for each in found.resources if resource.lower() in _names(each))
    if not selected:
        known = ", ".join(str(each.resource) for each in found.resources) or "none"
        message = f"runtime {found.runtime!r} has no resource {resource!r}; its resources: {known}"
        raise GovernorError(Kind.NOT_FOUND, "not-found", message)
    return msgspec.structs.replace(found, resources=selected, apply=())


def _names(each: ResourceExplanation) -> tuple[str, str]:
    ref = each.resource
    return f"{ref.kind}/{ref.name}".lower(), str(ref).lower()


def explanation_text(found: RuntimeExplanation) -> str:
    """Return a table for each resource and one for the apply policy."""
    return "\n\n".join(_parts(found)) or f"runtime {found.runtime!r} has no configuration"


def _parts(found: RuntimeExplanation) -> Iterator[str]:
    for each in found.resources:
        yield f"{each.resource}\n{_table(each.fields)}"
    if found.apply:
        yield f"apply policy\n{_table(found.apply)}"


def _table(fields: Iterable[FieldExplanation]) -> str:
    return table(("FIELD", "VALUE", "FROM"), ((each.path or "(all)", _value(each), _origin(each)) for each in fields))


def _value(field: FieldExplanation) -> str:
    if field.value is None:
        return "(removed)"
    return field.value if isinstance(field.value, str) else msgspec.json.encode(field.value).decode()


def _origin(field: FieldExplanation) -> str:
    if not field.profile:
        return "default"
    return f"Profile/{field.profile} version {field.version}, priority {field.priority}"
