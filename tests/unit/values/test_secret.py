"""A secret is never printed, logged, encoded, pickled, or part of an error."""

import copy
import io
import logging
import pickle
import traceback
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console
from rich.pretty import pretty_repr

from governor.values.secret import MASK, SEALED_KEY, Sealed, Secret
from governor.values.trees import masked, restore_sealed
from tests.unit.values.strategies import CANARY


class Holder(msgspec.Struct):
    secret: Secret
    sealed: Sealed


def logged(secret: object) -> str:
    record = logging.LogRecord("test", logging.INFO, "file", 1, "%s %r %s", (secret, secret, [secret]), None)
    return logging.Formatter().format(record)


def raised(secret: object) -> str:
    error = ValueError(secret)
    return f"{error} {error!r} " + "".join(traceback.format_exception(error))


def printed_by_rich(secret: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(secret, {"of": secret}, pretty_repr(secret))
    return capture.get()


SHOWN: dict[str, Callable[[object], str]] = {
    "repr": repr,
    "str": str,
    "format": format,
    "f-string": lambda secret: f"{secret} {secret!r} {secret!s} {secret!a} {secret:>9} {[secret]}",
    "percent": lambda secret: "%s %r %a %10s" % ((secret,) * 4),  # noqa: UP031 - the old form must mask too
    "str.format": "{0} {0!r} {0:>9}".format,
    "logging": logged,
    "exception": raised,
    "rich": printed_by_rich,
    "struct": lambda secret: repr(Holder(Secret(CANARY), Sealed(CANARY, CANARY))) + repr(secret),
}


@pytest.mark.parametrize("secret", [Secret(CANARY), Sealed(CANARY, CANARY)], ids=["Secret", "Sealed"])
@pytest.mark.parametrize("way", SHOWN)
def test_a_secret_is_shown_only_as_its_mask(way: str, secret: object) -> None:
    shown = SHOWN[way](secret)
    assert MASK in shown
    assert CANARY not in shown


def test_a_secret_reveals_its_text_only_on_demand() -> None:
    assert Secret(CANARY).reveal() == CANARY
    assert not hasattr(Secret(CANARY), "__dict__")


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins, pickle.dumps])
@pytest.mark.parametrize("hold", [lambda secret: secret, lambda secret: [{"of": secret}]], ids=["bare", "in a tree"])
def test_a_secret_cannot_be_encoded(encode: Callable[[object], object], hold: Callable[[object], object]) -> None:
    with pytest.raises(TypeError) as caught:
        encode(hold(Secret(CANARY)))
    assert CANARY not in raised(caught.value)


def test_a_copy_of_a_secret_is_the_secret_itself() -> None:
    secret = Secret(CANARY)
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


def test_equal_secrets_are_equal_and_others_are_not() -> None:
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


def test_a_sealed_leaf_survives_json_and_is_masked_for_display() -> None:
    tree = {"spec": [{"name": "password", "value": Sealed("box", "mac")}, 1]}
    assert restore_sealed(msgspec.json.decode(msgspec.json.encode(tree))) == tree
    assert msgspec.json.decode(msgspec.json.encode(Sealed("box", "mac"))) == {SEALED_KEY: "box", "mac": "mac"}
    assert masked(tree) == {"spec": [{"name": "password", "value": MASK}, 1]}
