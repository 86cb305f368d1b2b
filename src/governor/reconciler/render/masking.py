"""Renderings and messages without secrets. Pure."""

import base64
from collections.abc import Collection, Iterable
from typing import Final

from governor import yamltext
from governor.kube.applyset.diff import comparable
from governor.reconciler.render import go_yaml
from governor.reconciler.render.request import Document, Hook, Layer, Rendered
from governor.values.secret import MASK
from governor.values.trees import Tree, map_leaves, masked

_SHORTEST: Final = 4
"""Masking shorter texts would make the rest unreadable."""


def sensitive_texts(layers: Iterable[Layer]) -> tuple[str, ...]:
    """Return sensitive texts and numbers, and their form in Secrets; longer ones first."""
    values = [go_yaml.load_all(each.text.reveal(), "a layer of values") for each in layers if each.is_sensitive]
    texts: set[str] = set()

    def add(_: object, leaf: Tree) -> None:
        if leaf is not None and not isinstance(leaf, bool):
            texts.add(str(leaf))

    map_leaves(values, add)
    plain = [each for each in texts if len(each) >= _SHORTEST]
    encoded = [base64.b64encode(each.encode()).decode() for each in plain]
    return tuple(sorted((*plain, *encoded), key=len, reverse=True))


def without_texts(message: str, texts: Iterable[str]) -> str:
    """Return a message in which the texts are masked."""
    for text in texts:
        message = message.replace(text, MASK)
    return message


def manifests_text(rendered: Rendered, layers: Iterable[Layer]) -> str:
    """Return definitions, objects and hooks as YAML; neither Secrets nor sensitive values are shown."""
    texts = sensitive_texts(layers)
    return "".join(_document_text(each, texts) for each in (*rendered.crds, *rendered.objects, *rendered.hooks))


def tree_without_texts(tree: Tree, texts: Collection[str]) -> Tree:
    """Return a tree in which the texts are masked."""

    def mask(_: object, leaf: Tree) -> Tree:
        if isinstance(leaf, str):
            return without_texts(leaf, texts)
        return MASK if str(leaf) in texts else leaf

    return map_leaves(tree, mask)


def _document_text(document: Document, texts: tuple[str, ...]) -> str:
    shown = tree_without_texts(masked(comparable(document.object)), texts)
    return f"---\n# Source: {document.source}\n{_hook_text(document)}{yamltext.dump(shown)}"


def _hook_text(document: Document) -> str:
    if not isinstance(document, Hook):
        return ""
    policies = f", deleted on {', '.join(document.delete_policies)}" if document.delete_policies else ""
    return f"# Hook: {', '.join(document.events)}, weight {document.weight}{policies}\n"
