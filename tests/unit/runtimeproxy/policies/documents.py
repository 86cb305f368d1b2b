"""Policies as written, and how they are read."""

from governor.runtimeproxy.policies.engine import PolicyHandler
from governor.runtimeproxy.policies.reader import Policies, reload

HEAD = "apiVersion: runtime-governor.dev/v1alpha1\nkind: NodePolicy\n"


def document(spec: str, name: str = "p") -> str:
    """Return a document with this spec, in YAML's flow style."""
    return f"{HEAD}metadata: {{name: {name}}}\nspec: {spec}\n"


def read(*texts: str, previous: Policies = Policies(), has_unified: bool = True) -> Policies:  # noqa: B008 - frozen
    """Return the policies of files a.yaml, b.yaml and so on."""
    contents = {f"{name}.yaml": text.encode() for name, text in zip("abcdef", texts, strict=False)}
    return reload(previous, contents, has_unified=has_unified)


def policy(spec: str) -> PolicyHandler:
    """Return one policy as a handler."""
    found = read(document(spec))
    assert found.problems == (), found.problems
    (only,) = found.all
    return PolicyHandler(only)
