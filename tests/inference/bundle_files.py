"""The files of a bundle, and changes to them."""

from collections.abc import Callable
from pathlib import Path

from axml_ray.core.files import read_json, write_json
from axml_ray.inference.bundle.manifest import MANIFEST, entries

TREE, MODEL = "trees/1.safetensors", "members/network_tree-0/level-2/model.safetensors"


def change(path: Path, edit: Callable[[dict], None]) -> None:
    content = read_json(path)
    edit(content)
    write_json(path, content)


def sign(bundle: Path) -> None:
    """Make the manifest true of the files as they are, as a malicious maker would."""
    manifest = bundle / MANIFEST
    files = {name: entry.model_dump() for name, entry in entries(bundle) if name != MANIFEST}
    change(manifest, lambda content: content.update(files=files))
