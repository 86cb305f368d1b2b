"""Settings of a program, declared by one frozen struct: flags override the environment, which overrides a file.

The struct's fields give names, types, defaults and help (``Annotated[..., msgspec.Meta(description=...)]``). Unknown
names are errors. A field ``health_listen`` is the flag ``--health-listen``, the variable
``GOVERNOR_<PROGRAM>_HEALTH_LISTEN`` and the key ``health-listen`` of the file. A Secret field ``token`` is read from a
file that ``--token-file``, ``..._TOKEN_FILE`` or ``token-file`` names, or from the variable ``..._TOKEN``. Lists,
tables and structs come from the file only. Command-line flags are generated in ``options``. Decision 0013 gives the
reasons for not using a library.
"""

import difflib
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from governor import yamltext
from governor.errors import Detail, GovernorError, invalid
from governor.process.address import Address
from governor.values import structs
from governor.values.paths import render
from governor.values.secret import Secret

S = TypeVar("S", bound=msgspec.Struct)

_SIMPLE: Final = (str, int, float, bool, Path, Address, Secret)
_CONFIG: Final = "CONFIG"
# Kubernetes adds the addresses of a Service that is named like the program to the environment of every pod.
_SERVICE_LINK: Final = re.compile(r"SERVICE_(HOST|PORT)(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?")


class Setting:
    """One field of a settings struct with its names in each source."""

    def __init__(self, field: msgspec.structs.FieldInfo, program: str) -> None:
        self.field = field
        self.kind, self.help = _kind_and_help(field.type)
        self.secret = self.kind is Secret
        self.choices: tuple[str, ...] = (
            typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()
        )
        self.simple = self.kind in _SIMPLE or bool(self.choices)
        self.key = field.name.replace("_", "-") + ("-file" if self.secret else "")
        self.variable = prefix(program) + self.key.upper().replace("-", "_")
        self.secret_variable = self.variable.removesuffix("_FILE") if self.secret else ""


def settings_of(cls: type[msgspec.Struct], program: str) -> list[Setting]:
    """Return all settings of a program."""
    return [Setting(each, program) for each in msgspec.structs.fields(cls)]


def prefix(program: str) -> str:
    """Return the prefix of the program's environment variables."""
    return f"GOVERNOR_{program.upper().replace('-', '_')}_"


def load(
    cls: type[S],
    program: str,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> S:
    """Load the settings, each from its first source; one error lists all problems.

    ``flags`` maps flag names without dashes to raw values, None for a flag that was not given. ``config`` is the file;
    by default the variable ``GOVERNOR_<PROGRAM>_CONFIG`` names it.
    """
    environ = os.environ if environ is None else environ
    variables = {name: text for name, text in environ.items() if name.startswith(prefix(program))}
    return _Loader(cls, program).load(flags or {}, variables, config)


class _RawValue(msgspec.Struct, frozen=True):
    """A raw value and its source, for error messages."""

    value: object
    source: str
    line: int = 0
    is_secret: bool = False

    def problem(self, reason: str) -> Detail:
        return Detail(file=self.source, line=self.line, reason=reason)


class _Loader(Generic[S]):
    """Reads all sources once and collects the problems."""

    def __init__(self, cls: type[S], program: str) -> None:
        self._cls = cls
        self._program = program
        self._settings = settings_of(cls, program)
        self._problems: list[Detail] = []

    def load(self, flags: Mapping[str, object], variables: Mapping[str, str], config: Path | None) -> S:
        named = variables.get(prefix(self._program) + _CONFIG)
        path = config or (Path(named) if named else None)
        raw = self._from_file(path) | self._from_environment(variables) | self._from_flags(flags)
        values = {each.field.name: self._value(each, raw.get(each.key)) for each in self._settings}
        if self._problems:
            raise invalid("settings", f"the settings of {self._program} are invalid", self._problems)
        return self._cls(**{name: value for name, value in values.items() if value is not msgspec.UNSET})

    def _from_flags(self, flags: Mapping[str, object]) -> dict[str, _RawValue]:
        return {key: _RawValue(value, f"flag --{key}") for key, value in flags.items() if value is not None}

    def _from_environment(self, variables: Mapping[str, str]) -> dict[str, _RawValue]:
        known = {each.variable: each for each in self._settings if each.simple}
        secrets = {each.secret_variable: each for each in self._settings if each.secret}
        names = [*known, *secrets, prefix(self._program) + _CONFIG]
        found: dict[str, _RawValue] = {}
        for name, text in sorted(variables.items()):
            raw = _RawValue(text, f"environment {name}", is_secret=name in secrets)
            setting = known.get(name) or secrets.get(name)
            if setting is None:
                self._check_unknown_variable(raw, name, names)
            elif setting.key in found:
                self._problems.append(raw.problem(f"{setting.secret_variable} is set too: unset one of the two"))
            else:
                found[setting.key] = raw
        return found

    def _check_unknown_variable(self, raw: _RawValue, name: str, names: list[str]) -> None:
        common = prefix(self._program)
        if name not in names and not _SERVICE_LINK.fullmatch(name.removeprefix(common)):
            self._problems.append(raw.problem(_unknown(name, names, common)))

    def _from_file(self, path: Path | None) -> dict[str, _RawValue]:
        if path is None:
            return {}
        names = [each.key for each in self._settings]
        found = _keys_of(path)
        for key in found.keys() - set(names):
            self._problems.append(found[key].problem(_unknown(key, names)))
        return found

    def _value(self, setting: Setting, raw: _RawValue | None) -> object:
        """Return the converted value, or UNSET for the default or after a problem."""
        if raw is None:
            if setting.field.required:
                self._problems.append(Detail(_missing(setting)))
            return msgspec.UNSET
        try:
            return _convert(setting, raw)
        except msgspec.ValidationError as error:
            self._problems.append(raw.problem(_reason(setting, raw, error)))
        except GovernorError as error:
            self._problems.append(raw.problem(f"{setting.key}: {error.message}"))
        return msgspec.UNSET


def _kind_and_help(annotated: Any) -> tuple[Any, str]:
    """Return the type without Annotated and None, and the description from Annotated."""
    description = ""
    if typing.get_origin(annotated) is typing.Annotated:
        annotated, *notes = typing.get_args(annotated)
        description = next((note.description or "" for note in notes if isinstance(note, msgspec.Meta)), "")
    if typing.get_origin(annotated) in (typing.Union, types.UnionType):
        options = [each for each in typing.get_args(annotated) if each is not type(None)]
        annotated = options[0] if len(options) == 1 else annotated
    return annotated, description


def _keys_of(path: Path) -> dict[str, _RawValue]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise invalid("settings", f"cannot read the settings file {path}: {error.strerror or error}") from error
    documents = yamltext.load(text, str(path))
    if not documents:
        return {}
    if len(documents) > 1 or not isinstance(documents[0].value, dict):
        reason = "a settings file must be one mapping of keys to values"
        detail = Detail(file=str(path), line=documents[-1].line, reason=reason)
        raise invalid("settings", f"the settings file {path} cannot be used", [detail])
    only, table = documents[0], documents[0].value
    return {key: _RawValue(value, str(path), only.line_of((key,))) for key, value in table.items()}


def _unknown(name: str, names: Iterable[str], common: str = "") -> str:
    # The common prefix would make all names look similar.
    close = difflib.get_close_matches(name.removeprefix(common), [each.removeprefix(common) for each in names], n=1)
    hint = f"did you mean '{common}{close[0]}'?" if close else f"known settings: {', '.join(sorted(names))}"
    return f"unknown setting {name!r}, {hint}"


def _missing(setting: Setting) -> str:
    flag = f"--{setting.key}, {setting.variable} or " if setting.simple else ""
    return f"setting {setting.key!r} is required: set {flag}{setting.key!r} in the file"


def _reason(setting: Setting, raw: _RawValue, error: msgspec.ValidationError) -> str:
    path, reason = structs.explain(error, setting.field.type, raw.value)
    if not raw.line:
        reason = reason.removesuffix(", not a string")  # flags and variables are always strings
    return f"{render((setting.key, *path))}: {reason}"


def _convert(setting: Setting, raw: _RawValue) -> object:
    if setting.secret:
        return _read_secret(raw)
    if setting.kind is Address and isinstance(raw.value, str):
        return Address.parse(raw.value)
    return msgspec.convert(raw.value, setting.field.type, strict=raw.line > 0, dec_hook=_decode)


def _read_secret(raw: _RawValue) -> Secret:
    if raw.is_secret:
        return Secret(str(raw.value))
    if not isinstance(raw.value, str):
        raise invalid("settings", "must be the path of a file")
    try:
        text = Path(raw.value).read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise invalid("settings", f"cannot read {raw.value}: {reason}") from error
    if not text:
        raise invalid("settings", f"{raw.value} is empty")
    return Secret(text)


def _decode(expected: type, value: object) -> object:
    """Convert types that msgspec does not support; raise ValidationError for a wrong value."""
    if not isinstance(value, str):
        raise msgspec.ValidationError("must be a string")
    if expected is Path:
        return Path(value)
    raise NotImplementedError(f"settings cannot be of type {expected}")
