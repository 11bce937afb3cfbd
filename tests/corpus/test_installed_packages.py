"""Docstrings of installed packages as a corpus."""

import pickle
import textwrap
import warnings
from pathlib import Path

import pytest

from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.readers.sources import Document, InstalledPackage, installed_package_readers

DOC = " ".join(f"word{number}" for number in range(25))
SHORT_DOC = " ".join(f"word{number}" for number in range(24))


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
    return path


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A site-packages folder in which every rule of the reader has a case."""
    site = tmp_path / "test_site" / "site-packages"
    write(
        site / "zoo" / "sparse" / "_big" / "_csr.py",
        f'''
        def load(path, /, mode="r", *rest, limit=None, **options):
            """{DOC}"""

        def brief(x):
            """{SHORT_DOC}"""

        class Cage(Base):
            """Cage.

               Indented: {DOC}
            """

            def __init__(self, size, path=None): ...

            if True:
                @staticmethod
                async def open(key, size):
                    """Open. {DOC}"""

            @classmethod
            def _make(cls, *, cls_name):
                """Make. {DOC}"""
                def step(self, n):
                    """Step. {DOC}"""

            class Lock:
                """Lock. {DOC}"""
        ''',
    )
    write(site / "zoo" / "__init__.py", f'def f():\n    "f {DOC} \\ud800\\0"\n')
    write(site / "zoo" / "a" / "b" / "c" / "d" / "e.py", f'def g(): "{DOC}"\n')
    for skipped in [
        *(
            "zoo/tests/util.py",
            "zoo/a/testing/util.py",
            "zoo/_tests/x.py",
            "zoo/test/x.py",
            "tests/helper.py",
        ),
        *(
            "zoo/test_a.py",
            "zoo/a_test.py",
            "zoo/conftest.py",
            "_hidden/a.py",
            "_hidden_module.py",
            "pip/a.py",
        ),
        *("setuptools/a.py", "pkg_resources/a.py", "_distutils_hack/a.py", "wheel/a.py", "axml_ray/a.py"),
        *("zoo-1.0.dist-info/a.py", "zoo.egg-info/a.py", "__pycache__/a.py", "zoo-stubs/a.py", "zoo/a.pyi"),
    ]:
        write(site / skipped, f'def skipped(): "{DOC}"\n')
    write(site / "broken" / "python2.py", "print 'hello'\n")
    write(site / "broken" / "nul.py", b"x = 1\0\n")
    write(site / "broken" / "latin.py", b"x = '\xe9'\n")
    write(site / "broken" / "codec.py", b"# coding: no-such-codec\n")
    write(site / "broken" / "deep.py", "(" * 50_000 + ")" * 50_000)
    write(site / "broken" / "deep_minus.py", "-" * 200_000 + "1")
    write(site / "broken" / "warns.py", f'def h(): "{DOC}"\nx = "\\d" is 1\n')
    write(site / "single.py", f'# coding: latin-1\ndef k(ø): "Ø {DOC}"\n'.encode("latin-1"))
    return site


def test_labels_of_installed_packages(site_packages: Path) -> None:
    readers = installed_package_readers(site_packages)
    assert [reader.path.name for reader in readers] == ["broken", "single.py", "tests", "zoo"]
    records = [record for reader in readers for record in reader.read()]
    assert all(isinstance(record, Document) for record in records)
    sparse = ("zoo", "zoo.sparse")
    assert [(record.id, record.labels) for record in records if isinstance(record, Document)] == [
        ("broken/warns.py:1", ("broken", "broken.warns")),
        ("single.py:2", ("single", "ø")),
        ("zoo/__init__.py:1", ("zoo",)),
        ("zoo/a/b/c/d/e.py:1", ("zoo", "zoo.a", "zoo.a.b", "zoo.a.b.c")),
        ("zoo/sparse/_big/_csr.py:2", (*sparse, "path", "mode", "rest", "limit", "options")),
        ("zoo/sparse/_big/_csr.py:8", (*sparse, "Cage", "size", "path")),
        ("zoo/sparse/_big/_csr.py:18", (*sparse, "Cage", "key", "size")),
        ("zoo/sparse/_big/_csr.py:22", (*sparse, "Cage", "cls_name")),
        ("zoo/sparse/_big/_csr.py:24", (*sparse, "n")),
        ("zoo/sparse/_big/_csr.py:27", (*sparse, "Lock")),
    ]


def test_texts_of_installed_packages(site_packages: Path) -> None:
    texts = {
        record.id: record.text
        for reader in installed_package_readers(site_packages)
        for record in reader.read()
        if isinstance(record, Document)
    }
    assert texts["zoo/__init__.py:1"] == f"f {DOC}   "
    assert texts["zoo/sparse/_big/_csr.py:8"] == f"Cage.\n\nIndented: {DOC}"
    assert texts["single.py:2"] == f"Ø {DOC}"


def test_sources_that_do_not_parse_are_skipped_quietly(site_packages: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = list(InstalledPackage(site_packages / "broken").read())
    assert [record.line for record in records] == [1]


def test_missing_and_empty_site_packages(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        installed_package_readers(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no installed package"):
        installed_package_readers(tmp_path)


def test_readers_and_records_travel_to_tasks(site_packages: Path, tmp_path: Path) -> None:
    lines = JsonLines(write(tmp_path / "a.jsonl", b'{"text": "a", "labels": ["x"]}\nbad\n'))
    for reader in (lines, InstalledPackage(site_packages / "zoo")):
        assert pickle.loads(pickle.dumps(reader)) == reader
        records = list(reader.read())
        assert pickle.loads(pickle.dumps(records)) == records


@pytest.mark.slow  # reads all of SciPy
def test_this_environment_is_a_corpus() -> None:
    readers = {reader.path.name: reader for reader in installed_package_readers()}
    assert {"scipy", "numpy", "torch", "ray"} <= set(readers)
    assert readers.keys().isdisjoint({"pip", "setuptools", "_pytest", "axml_ray"})
    documents = [record for record in readers["scipy"].read() if isinstance(record, Document)]
    assert len(documents) > 2000
    assert len({document.id for document in documents}) == len(documents)
    assert all(document.labels[0] == "scipy" for document in documents)
    (expm_multiply,) = (d for d in documents if d.text.startswith("Compute the action of the matrix exponential of A"))
    assert expm_multiply.id.startswith("scipy/sparse/linalg/_expm_multiply.py:")
    assert expm_multiply.labels == (
        *("scipy", "scipy.sparse", "scipy.sparse.linalg"),
        *("A", "B", "start", "stop", "num", "endpoint", "traceA"),
    )
