import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.text.vector_files import dimension_of, load_known_vectors
from axml_ray.corpus.text.word_vectors import read_vectors, save_vectors

NAMES = ["the", "Cat", "naïve", "日本", "1.5", "dog", "a\u00a0b"]
TABLE = (np.arange(len(NAMES) * 5, dtype=np.float32).reshape(-1, 5) - 7) / 3
WORDS = ["<padding>", "<unknown>", "dog", "naïve", "absent", "1.5"]


def written(tmp_path: Path, form: str) -> Path:
    """`NAMES` and `TABLE` in one of the published forms."""
    kind, _, packed = form.partition("+")
    path = tmp_path / f"vectors.{kind}"
    if kind == "npy":
        np.save(path, TABLE)
        (tmp_path / "vocab.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    else:
        header = b"" if kind == "txt" else f"{len(NAMES)} {TABLE.shape[1]}\n".encode()
        values = [" ".join(map(str, row)).encode() for row in TABLE]
        lines = [name.encode() + b" " + value + b"\n" for name, value in zip(NAMES, values, strict=True)]
        path.write_bytes(header + b"".join(lines))
    content = path.read_bytes()
    if packed == "gz":
        path.write_bytes(gzip.compress(content))
    elif packed == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("glove.txt", content)
        path.write_bytes(out.getvalue())
    return path


FORMS = ["npy", "txt", "vec", "txt+gz", "txt+zip", "vec+gz", "vec+zip"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    dimension_of(path)
    assert dimension_of(path) == 5
    known, vectors = load_known_vectors(path, WORDS)
    assert known.tolist() == [False, False, True, True, False, True]
    np.testing.assert_array_equal(vectors, TABLE[[5, 2, 4]])
    table, coverage = read_vectors(path, WORDS, seed=0)
    # Padding isn't counted.
    assert coverage == 3 / 5
    np.testing.assert_array_equal(table[[2, 3, 5]], TABLE[[5, 2, 4]])
    assert not table[0].any()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "npy"])
def test_a_truncated_file_is_refused(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    content = path.read_bytes()
    # Cut inside a value, where text of GloVe leaves a line too short.
    path.write_bytes(content[: len(content) - 18])
    with pytest.raises(SettingsError, match=r"corpus\.word_vectors: ") as caught:
        load_known_vectors(path, WORDS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected lines of a word and its values"),
        (b"just words\nof a text\n", "expected lines of a word and its values"),
        (b"a 1 2 3\nb 1 2\n", "line 2: expected a word and 3 values, found 2 values"),
        (b"a 1 2 3\nb 1 2 3 4\n", "line 2: expected 3 numbers after the word|unused"),
        (b"a 1 2 3\nb x 2 3\n", "line 2: expected 3 numbers after the word"),
        (b"2 3\na 1 2 3\n", "has 1 words, its first line says 2"),
        (b"2 3\na 1 2 3\nb 1 2\n", "line 3: expected a word and 3 values, found 2 values"),
        (b"1 0\na\n", "dimension of 0"),
        (b"1 2\na \x00\x00\x80?\x00\x00\x80?", "line 2: .*binary"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    if b"2 3 4" in content:
        # A word with a blank, as some published files have; nothing tells it from a longer line.
        assert load_known_vectors(path, ["b 1"])[0].tolist() == [True]
        return
    with pytest.raises(SettingsError, match=reason):
        dimension_of(path)
        load_known_vectors(path, ["b"])


@pytest.mark.parametrize("first", ["", "2 2\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path, first: str) -> None:
    (tmp_path / "v.txt").write_text(f"\ufeff{first}a 1 2\nb 3 4\n", encoding="utf-8")
    assert load_known_vectors(tmp_path / "v.txt", ["a", "b"])[0].all()


@pytest.mark.parametrize("number", ["nan", "inf", "-1e99"])
def test_a_vector_that_is_not_finite_is_named(tmp_path: Path, number: str) -> None:
    (tmp_path / "v.txt").write_text(f"a 1 2\nb 3 4\nc 5 {number}\n")
    with pytest.raises(SettingsError, match="'c'"):
        read_vectors(tmp_path / "v.txt", ["<padding>", "<unknown>", "c", "a"], 0)
    assert read_vectors(tmp_path / "v.txt", ["<padding>", "<unknown>", "b", "a"], 0)[1] > 0.5  # c is not needed


def test_an_archive_of_two_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a 1 2\n")
        archive.writestr("b.txt", "a 1 2\n")
    with pytest.raises(SettingsError, match=r"v\.zip: .*archive of 2 files"):
        dimension_of(path)


def test_saved_vectors_are_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    save_vectors(tmp_path / "v.safetensors", TABLE)
    found = load_file(tmp_path / "v.safetensors")
    assert list(found) == ["word_vectors"]
    np.testing.assert_array_equal(found["word_vectors"], TABLE)
