"""Whether a corpus is up to date."""

from pathlib import Path
from typing import Any

from axml_ray.corpus.places import Place, state_of
from axml_ray.settings import CorpusSettings


def places_of(shard: Any) -> list[Place]:
    """The files that a shard reads."""
    return [shard.path, *([shard.labels_path] if hasattr(shard, "labels_path") else [])]


def state_of_input(place: Place) -> tuple[int, int]:
    """Changes with what a reader finds at `place`; importing a package, which may write byte code, changes nothing."""
    if isinstance(place, Path) and place.is_dir():
        sizes = [file.stat().st_size for file in place.rglob("*.py") if file.is_file()]
        return sum(sizes), len(sizes)
    return state_of(place)


def what_changed(manifest: dict[str, Any], settings: CorpusSettings, inputs: list[list[Any]]) -> str:
    """Which settings, or else which inputs, differ from those in a manifest, for people."""
    before, now = manifest.get("settings", {}), settings.model_dump(mode="json")
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if keys:
        return "made with other settings (" + ", ".join(f"corpus.{key}" for key in keys) + ")"
    files = {tuple(row[:2]): row[2:] for row in manifest.get("sources", [])}
    changed = [row[1] for row in inputs if files.get(tuple(row[:2])) != row[2:]]
    gone = sorted(path for split, path in files.keys() - {tuple(row[:2]) for row in inputs})
    names = [*changed, *gone]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"made from other inputs ({', '.join(names[:3])}{more})" if names else "made by another version"
