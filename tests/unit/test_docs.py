"""Paths, links and make targets that the documents mention exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)")
CODE_PATH = re.compile(r"`(?P<path>(?:src|tests|testbed|toolchain|deploy|demo|bench|tools|requirements|docs)/[^`\s]*)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_path_in_the_architecture_exists() -> None:
    paths = [match["path"] for match in CODE_PATH.finditer((ROOT / "ARCHITECTURE.md").read_text())]

    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in ROOT.glob("src/governor/*/__init__.py")}

    assert {name for name in packages if f"src/governor/{name}/" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_has_a_target(page: Path) -> None:
    targets = [match for match in LINK.finditer(page.read_text()) if "://" not in match["target"]]
    broken = [match["target"] for match in targets if not (page.parent / match["target"]).exists()]
    missing_anchors = [
        match.group()
        for match in targets
        if match["anchor"] and match["anchor"] not in anchors_of(page.parent / match["target"])
    ]

    assert (broken, missing_anchors) == ([], [])


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    records = [path.name for path in (ROOT / "docs/decisions").glob("0*.md")]

    assert len(records) >= 6
    assert [name for name in records if f"({name})" not in index] == []


def test_every_mentioned_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`(?:KEEP=1 )?make ([\w-]+)`", text)) | set(
        re.findall(r"^\$ make ([\w-]+)", text, re.MULTILINE)
    )

    assert {"demo", "test"} <= named
    assert named - targets == set()
