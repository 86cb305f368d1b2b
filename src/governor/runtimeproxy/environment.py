"""A container's environment: a list of bytes in CRI, a map of texts in the hook protocol.

Both encode a variable alike, so variables travel as encoded entries and are decoded only where they differ: there may
be hundreds of thousands. CRI's order, duplicates and bytes are kept:

| in CRI | in the map |
|---|---|
| a name several times | its last value, the one that the container sees |
| a last value that is not UTF-8 | absent, since it has no text form |

Setting a variable therefore sets the last entry of that name or appends one; removing it removes all entries of that
name.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from governor.errors import invalid
from governor.runtimeproxy.cri.cri_pb2 import KeyValue, RequestVariables
from governor.runtimeproxy.hooks.changes import Value
from governor.values.secret import Secret

_KEY_TAG: Final = b"\n"
_ONE_BYTE: Final = 0x80


class Environment:
    """The variables of one container, as encoded entries in order."""

    __slots__ = ("_visible", "entries")

    def __init__(self, entries: Sequence[bytes] = ()) -> None:
        self.entries = entries
        self._visible: Sequence[bytes] | None = None

    @property
    def visible(self) -> Sequence[bytes]:
        """The entries that plugins can be sent."""
        if self._visible is None:
            self._visible = self.entries if all(map(bytes.isascii, self.entries)) else _texts_only(self.entries)
        return self._visible

    def encoded(self) -> bytes:
        """Return the part of a hook request that carries the variables."""
        return RequestVariables(container_envs=self.visible).SerializeToString()

    def texts(self) -> dict[str, str]:
        """Return the visible variables by name."""
        return dict(map(text_of, self.visible))

    def first_names(self, most: int, most_bytes: int) -> bytes:
        """Return the first names as lines, at most so many and of so many bytes together."""
        # In the usual encoding a name of up to 127 bytes follows its tag and its length.
        names = [each[2 : 2 + each[1]] for each in self.entries[:most] if each[:1] == _KEY_TAG and each[1] < _ONE_BYTE]
        return b"\n".join(names)[:most_bytes]

    def with_changes(self, changes: Iterable[tuple[str, Value]]) -> "Environment":
        """Return the environment with these variables set; None removes one."""
        entries = list(self.entries)
        names = [_decode(each).key for each in entries]
        for name, value in changes:
            indexes = [index for index, each in enumerate(names) if each == name]
            if isinstance(value, Secret):
                entry = variable(name, value.reveal().encode())
                if indexes:
                    entries[indexes[-1]] = entry
                else:
                    entries.append(entry)
                    names.append(name)
            else:
                for index in reversed(indexes):
                    del entries[index], names[index]
        return Environment(entries)


def decode_environment(encoded: bytes) -> Environment:
    """Return the variables in a part of a hook request."""
    return Environment(list(RequestVariables.FromString(encoded).container_envs))


def variable(name: str, value: bytes) -> bytes:
    """Return one encoded variable."""
    return KeyValue(key=name, value=value).SerializeToString()


NO_VARIABLES: Final = Environment()


def _texts_only(entries: Sequence[bytes]) -> list[bytes]:
    """Return the entries whose value is UTF-8, without those of names whose last value is not."""
    decoded = [(each, _decode(each)) for each in entries]
    last = {variable.key: variable.value for _, variable in decoded}
    hidden = {key for key, value in last.items() if not _is_text(value)}
    return [each for each, variable in decoded if variable.key not in hidden and _is_text(variable.value)]


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(entry: bytes) -> tuple[str, str]:
    """Return name and value of a variable, as texts."""
    decoded = _decode(entry)
    return decoded.key, decoded.value.decode(errors="replace")


def decode_text(entry: bytes) -> tuple[str, str]:
    """Return name and value of a variable that a plugin returned; raise INVALID if they are not UTF-8."""
    try:
        decoded = KeyValue.FromString(entry)
        return decoded.key, decoded.value.decode()
    except (DecodeError, UnicodeDecodeError) as error:
        raise invalid("hook-answer", "a variable in the response is not UTF-8") from error


def _decode(entry: bytes) -> KeyValue:
    """Return a variable; one that cannot be decoded has no name, and so none that a plugin can set."""
    try:
        return KeyValue.FromString(entry)
    except DecodeError:
        return KeyValue(value=b"\xff")
