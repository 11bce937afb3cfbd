"""The names of the real corpora's labels: files that were not made for this program.

Run: pytest tests/corpus/test_names_of_corpora.py
"""

import gzip
from pathlib import Path

import orjson
import pytest
import yaml

from axml_ray.corpus.labels.name_files import name_labels

ROOT = Path(__file__).parents[2]
CORPORA = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["corpus"] for path in ROOT.glob("configs/*.yaml")
}
NAMED = {name: corpus for name, corpus in CORPORA.items() if ".jsonl.gz" in str(corpus) and "label_names" in corpus}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_shipped_config_finds_its_names(name: str) -> None:
    corpus = NAMED[name]
    texts, names = (ROOT / corpus["train"][0], ROOT / corpus["label_names"])
    if not (texts.is_file() and names.is_file()):
        pytest.skip(f"{texts.parent} is not on this machine")
    with gzip.open(texts) as lines:
        labels = sorted({label for line in lines for label in orjson.loads(line)["labels"]})
    found = name_labels(labels, names)
    assert sum(name != label for name, label in zip(found, labels, strict=True)) > 0.4 * len(labels)
