"""Renderings and messages without secrets."""

import base64

from governor.reconciler.render.masking import manifests_text, sensitive_texts, without_texts
from governor.reconciler.render.request import Document, Hook, Layer, Rendered
from governor.values.secret import Secret

LAYERS = (
    Layer(Secret("place: Berlin")),
    Layer(Secret("password: hunter2\nlong: hunter2-and-more\npin: 12345\nshort: abc\nyes: true"), is_sensitive=True),
)


def test_sensitive_texts_and_numbers_are_masked_also_as_in_secrets() -> None:
    encoded = base64.b64encode(b"hunter2").decode()
    message = f"hunter2-and-more hunter2 {encoded} 12345 abc true Berlin"
    assert without_texts(message, sensitive_texts(LAYERS)) == "*** *** *** *** abc true Berlin"


def test_a_rendering_is_yaml_without_secrets() -> None:
    def named(kind: str, **fields: object) -> dict[str, object]:
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}, **fields}

    rendered = Rendered(
        (Document("crds/a.yaml", named("Definition")),),
        (
            Document("a.yaml", named("Secret", data={"generated": "eA=="})),
            Document("b.yaml", named("ConfigMap", data={"text": "with hunter2", "pin": 12345, "on": True})),
        ),
        (Hook("c.yaml", named("Job"), ("pre-install",), 3, ("hook-succeeded",)),),
    )
    text = manifests_text(rendered, LAYERS)
    assert 'generated: "***"' in text
    assert "text: with ***" in text
    assert 'pin: "***"' in text
    assert "on" in text
    assert "# Source: c.yaml\n# Hook: pre-install, weight 3, deleted on hook-succeeded\n" in text
    assert [line for line in text.splitlines() if line.startswith("kind")] == [
        *("kind: Definition", "kind: Secret", "kind: ConfigMap", "kind: Job"),
    ]
