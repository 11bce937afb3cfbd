from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus.preparing import Prepare, lines

from axml_ray.corpus.preparation import build
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.settings import SPLITS, CorpusSettings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Prepare records, or files given by name, as `<tmp_path>/corpus`, in blocks of `block_bytes`."""

    def run(
        train: Any = (),
        test: Any = (),
        valid: Any = (),
        directory: str = "corpus",
        check: Callable[[Corpus], None] = lambda _: None,
        block_bytes: int = build.BLOCK_BYTES,
        **settings: Any,
    ) -> Corpus:
        paths: dict[str, tuple[Path, ...]] = {}
        for split, given in (("train", train), ("valid", valid), ("test", test)):
            if not isinstance(given, tuple):
                path = tmp_path / f"{split}.jsonl"
                content = given if isinstance(given, bytes) else lines(given, 100_000 * SPLITS.index(split))
                if not path.exists() or path.read_bytes() != content:
                    path.write_bytes(content)
                given = (path,)
            paths[split] = given
        monkeypatch.setattr(build, "BLOCK_BYTES", block_bytes)
        settings = {"valid_documents": 3, "word_vectors": "random", "word_dimension": 4} | settings
        return prepare(CorpusSettings(**paths, **settings), tmp_path / directory, check=check)

    return run
