"""What the tests of preparation share: records, the files they are prepared from, what came out."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.store import Corpus

Record = tuple[str, Sequence[str]]
Prepare = Callable[..., Corpus]


def lines(records: Sequence[Record], first: int = 0) -> bytes:
    """Records as JSON lines with ids `d0`, `d1`, …"""
    rows = [{"id": f"d{first + i}", "text": text, "labels": list(labels)} for i, (text, labels) in enumerate(records)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def many(count: int, tag: str = "train") -> list[Record]:
    return [(f"{tag} text {i} of w{i % 7} and w{i % 5}", [f"l{i % 4}", "all"]) for i in range(count)]


def rows(corpus: Corpus, split: str) -> dict[str, tuple[list[str], str]]:
    """Labels and text of each document, by id."""
    table = corpus.table(split, ["id", "labels", "text"])
    named = [[corpus.labels.labels[i] for i in row] for row in table["labels"].to_pylist()]
    return dict(zip(table["id"].to_pylist(), zip(named, table["text"].to_pylist(), strict=True), strict=True))


def ids(corpus: Corpus, split: str) -> list[str]:
    return list(rows(corpus, split))


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.is_dir())


def content(corpus: Corpus) -> dict[str, bytes]:
    """All that was written; of the manifest, all but the time it took."""
    files = {
        path.relative_to(corpus.directory).as_posix(): path.read_bytes()
        for path in corpus.directory.rglob("*")
        if path.is_file()
    }
    manifest = json.loads(files.pop("corpus.json"))
    assert manifest.pop("seconds") > 0
    return {**files, "corpus.json": json.dumps(manifest).encode()}


def written(corpus: Corpus) -> dict[str, bytes]:
    """All files but the manifest, which says where the input lay."""
    return {name: found for name, found in content(corpus).items() if name != "corpus.json"}


def error_of(run: Prepare, **settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        run(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BAD = b'{"text": "t", "labels": true}\n'
UNLABELLED = [("a", []), ("b", []), ("c", []), ("d", [])]
CUT = {"max_tokens": 8, "min_label_count": 2, "min_document_frequency": 2, "drop_duplicates": True}


def mixed(count: int, tag: str) -> list[Record]:
    """Texts of several scripts, some repeated, some empty, some longer than the cut."""
    return [
        (
            ["", f"{tag} w{i} naïve 日本 {i % 9}", f"Title /SEP/ w{i % 7} " * (1 + i % 5), "same text"][i % 4],
            [f"l{i % 13}", f"rare {i}" if i % 11 == 0 else "l1", *(["l2"] if i % 3 else [])],
        )
        for i in range(count)
    ]
