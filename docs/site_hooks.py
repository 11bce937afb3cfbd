"""Pages of the documentation site that are generated in its build: settings, Python API, and files of the repository.

MkDocs calls `on_config` and `on_files`. No generated page is written into the repository.
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "axml_ray"
COPIES = {"contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
"""Pages that are files of the repository's root, whose links are made relative to docs/."""


def api_pages() -> dict[str, list[str]]:
    """Return the modules of each page of the Python API: one page per package or module directly below `axml_ray`."""
    pages: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = module.split(".")
        if not any(name.startswith("_") for name in names):
            pages.setdefault(f"api/{names[1] if len(names) > 1 else names[0]}.md", []).append(module)
    return pages


def on_config(config: Any) -> Any:
    """Put the pages of the Python API below the entry of `python-api.md`."""
    for section in config.nav:
        for entries in section.values():
            if isinstance(entries, list):
                for i, entry in enumerate(entries):
                    if "python-api.md" in entry.values():
                        pages = [{Path(page).stem: page} for page in api_pages()]
                        entries[i] = {"Python API": ["python-api.md", *pages]}
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # here, since MkDocs restores the path after it imported a hook
    from settings_reference import render

    pages = {"settings.md": render()}
    for page, source in COPIES.items():
        pages[page] = local_links((ROOT / source).read_text(encoding="utf-8"))
    for page, modules in api_pages().items():
        blocks = [f"::: {module}\n    options:\n      show_submodules: false\n" for module in modules]
        pages[page] = "\n\n".join([f"# {Path(page).stem}", *blocks])
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def local_links(text: str) -> str:
    """Return a file of the repository's root with links as seen from docs/; those to files outside are plain text."""
    for page, source in COPIES.items():
        text = text.replace(f"]({source}", f"]({page}")
    text = text.replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\((?![\w-]+\.md|https?:|#)[^)]*\)", r"\1", text)
