"""README and pages: length, figures in prose, links, pictures, the site's pages and its build."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
GENERATED = {"settings.md", "contributing.md", "security.md", "changelog.md"}
MOST_FIGURES = 2
MOST_BYTES = 300_000


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items, without headings, tables, blocks of code, code spans and targets of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|\A---\n.*?\n---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", "\n".join(lines)):
        words = re.sub(r"^\s*(?:[-*]|\d+\.)\s", "", paragraph)
        yield re.sub(r"\]\([^)]*\)|`[^`]*`|https?://\S+", "", words)


def figures(paragraph: str) -> list[str]:
    """Return the numbers that stand alone: not those of names such as P@5, Amazon-3M or RFC 9457."""
    named = re.sub(r"\b(?:RFC|Python|Apache|NeurIPS|CC BY|H =|K =|equations?|Table|Figure)\s?[-\d. ]+", "", paragraph)
    return re.findall(r"(?<![\w@.,-])\d+(?:[.,]\d+)*(?![\w@-])", named)


@pytest.mark.parametrize("page", [page for page in TEXTS if page.name != "LOG.md"], ids=lambda page: page.name)
def test_prose_has_few_figures(page: Path) -> None:
    crowded = [each for each in paragraphs(page.read_text(encoding="utf-8")) if len(figures(each)) > MOST_FIGURES]
    assert crowded == []


def test_figures_are_counted() -> None:
    text = (
        "Scores rose from 58.1 to 59.0, in 3 runs (P@5; `4`).\n\n| 1 | 2 | 3 |\n\n- one: 1\n- two: 2, 3 of Amazon-3M\n"
    )
    assert [len(figures(each)) for each in paragraphs(text)] == [3, 1, 2]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|#", target):
            continue
        path = page.parent / target.partition("#")[0]
        if not (page.parent == DOCS and path.name in GENERATED):
            assert path.is_file(), target
            assert path.suffix != ".png" or path.stat().st_size < MOST_BYTES


def test_the_site_lists_every_page() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entries: object) -> Iterator[str]:
        if isinstance(entries, str):
            yield entries
        else:
            for entry in entries.values() if isinstance(entries, dict) else entries:
                yield from pages(entry)

    assert set(pages(config["nav"])) == {page.name for page in DOCS.glob("*.md")} | GENERATED


def test_the_page_of_settings_has_every_setting() -> None:
    import settings_reference

    page = settings_reference.render()
    names = settings_reference.names()
    assert len(names) > 70 and {"seed", "tree.height", "members.knn.neighbours", "resources.workers"} <= set(names)
    rows = dict(re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    assert [name for name in names if not rows.get(name, "").strip()] == []


def test_diagrams_are_those_of_their_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pictures

    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    for draw in (pictures.architecture, pictures.label_tree, pictures.attention):
        draw()
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DOCS / "images" / path.name).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra `docs` is not installed")
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    inventory = {path.stem for path in (tmp_path / "api").glob("*.html")}
    top = [path for path in (ROOT / "axml_ray").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert {path.stem for path in top if path.stem != "__init__"} <= inventory
    for page in tmp_path.rglob("*.html"):
        assert not re.search(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"https?:", page.read_text(encoding="utf-8")
        )
