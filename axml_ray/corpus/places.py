"""Where sources lie: local files, globs of them, and URLs of whatever store pyarrow reaches; opened as streams.

- **Compression is told by the first bytes** (gzip, zstd), not by the name of a file.
- **Lines come in blocks**, as whole lines; neither a file nor a line longer than `LONGEST_LINE` is ever held.
- **A large file that isn't compressed is read in ranges**, by several tasks: a line belongs to the range that it
  begins in.
"""

import codecs
import fnmatch
import glob
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LONGEST_LINE = 64 << 20
_PIECE = 128 << 10

Place = Path | str
"""A local path, or a URL such as `s3://bucket/train.jsonl`."""


COMPRESSIONS = (".gz", ".zst")


def format_suffix(place: Place) -> str:
    """The suffix that tells the format, e.g. `.csv` of `a.csv.gz`, in lower case."""
    name = (place.name if isinstance(place, Path) else place.partition("?")[0]).lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix


def is_url(place: Path | str) -> bool:
    """Whether `place` is to be reached through a file system of pyarrow."""
    return isinstance(place, str) and "://" in place


def files_of(pattern: Path | str, suffixes: tuple[str, ...]) -> list[Place]:
    """The files that a pattern names, sorted, with absolute paths: a task may run in another working directory.

    Args:
        pattern: a file; a directory, which stands for the files with one of `suffixes` right in it; or a glob such as
            `"data/**/part-*.jsonl"`, which stands for the files it matches, whatever they are called. `~` is the home
            directory; hidden files must be named. Any of these may be a URL.
        suffixes: of the files that are taken from a directory.

    Raises:
        FileNotFoundError: nothing matches.
        ValueError: a directory has no such file, or a URL is of no known kind.
    """
    if is_url(pattern):
        return _files_of_url(str(pattern), suffixes)
    place = Path(pattern).expanduser().absolute()
    if place.is_dir():
        found = [path for path in place.iterdir() if _is_wanted(path.name, suffixes) and path.is_file()]
        _check_found(found, place, suffixes)
    elif place.exists():
        found = [place]
    else:
        # Path.glob would match hidden files as well and refuses absolute patterns.
        matches = glob.glob(str(place), recursive=True)  # noqa: PTH207
        found = [path for path in map(Path, matches) if path.is_file()]
        if not found:
            raise FileNotFoundError(f"no file matches {str(pattern)!r}")
    return list(sorted(found))


def _files_of_url(url: str, suffixes: tuple[str, ...]) -> list[Place]:
    plain, mark, query = url.partition("?")
    parts = plain.split("/")
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    base = "/".join(parts[:fixed])
    try:
        store, path = fs.FileSystem.from_uri(base + mark + query)
        info = store.get_file_info(path)
        if info.type == fs.FileType.File:
            return [url]
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"no file matches {url!r}")
        deep = any("**" in part for part in parts[fixed:])
        depth = len(parts) - fixed
        selector = fs.FileSelector(path, recursive=deep or depth > 1)
        inside = [info.path for info in store.get_file_info(selector) if info.type == fs.FileType.File]
    except pa.ArrowInvalid as error:
        raise ValueError(f"{url}: {error}") from None
    below = [place.removeprefix(path).lstrip("/") for place in inside]
    if depth:
        wanted = "/".join(parts[fixed:])
        found = [name for name in below if _matches(name, wanted)]
        if not found:
            raise FileNotFoundError(f"no file matches {url!r}")
    else:
        found = [name for name in below if _is_wanted(name, suffixes)]
        _check_found(found, url, suffixes)
    return [f"{base.rstrip('/')}/{name}{mark}{query}" for name in sorted(found)]


def _matches(name: str, wanted: str) -> bool:
    if any(part.startswith(".") for part in name.split("/")):
        return False
    return _parts_match(name.split("/"), wanted.split("/"))


def _parts_match(names: list[str], wanted: list[str]) -> bool:
    """Whether a path is of a pattern, part by part; `**` stands for any number of directories, at the end for files."""
    if not wanted:
        return not names
    if wanted[0] == "**":
        rest = wanted[1:] or ["*"]
        return any(_parts_match(names[begin:], rest) for begin in range(len(names)))
    return bool(names) and fnmatch.fnmatchcase(names[0], wanted[0]) and _parts_match(names[1:], wanted[1:])


def _is_wanted(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and not name.startswith(".")


def _check_found(found: object, place: object, suffixes: tuple[str, ...]) -> None:
    if not found:
        wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
        raise ValueError(f"no file to read ({wanted}) in the directory {place}")


def state_of(place: Place) -> tuple[int, int]:
    """Size and time of change (ns) of a file; they change with what a reader finds there."""
    if isinstance(place, Path):
        status = place.stat()
        return status.st_size, status.st_mtime_ns
    store, path = fs.FileSystem.from_uri(place)
    info = store.get_file_info(path)
    return info.size or 0, info.mtime_ns or 0


def open_file(place: Place) -> BinaryIO:
    """The bytes of a file as they are stored, seekable.

    Raises:
        OSError: it cannot be opened.
    """
    if isinstance(place, Path):
        return place.open("rb")
    store, path = fs.FileSystem.from_uri(place)
    return io.BufferedReader(store.open_input_file(path), 1 << 20)


def out_of_reach(error: Exception, place: Place) -> bool:
    """Whether it is the place that failed and not what lies there, which would be a loss to leave out.

    Arrow's readers raise an OSError of no number for what is damaged, and for stores that don't answer.
    """
    return isinstance(error, OSError) and (error.errno is not None or is_url(place))


def open_plain(place: Place) -> BinaryIO:
    """The bytes of a file, decompressed; what is damaged raises while it is read, see `DAMAGE`."""
    file = open_file(place)
    magic = file.peek(len(ZSTD_MAGIC))  # type: ignore[attr-defined]
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if magic.startswith(ZSTD_MAGIC):
        return io.BufferedReader(_Zstd(file), _PIECE)
    return file


class _Zstd(io.RawIOBase):
    """A stream through pyarrow's decompressor, which takes the end of a truncated file for its end."""

    def __init__(self, file: BinaryIO):
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            content = self._stream.read(len(buffer))
        except OSError as error:
            if error.errno is not None:  # not the decompressor's
                raise
            raise EOFError(str(error)) from None
        buffer[: len(content)] = content
        return len(content)


DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a block of lines would be: what keeps it from being read."""

    reason: str
    lines: int
    """How many lines are lost as far as is known: 1 for a line that is too long, 0 at the end of a damaged file."""


def line_blocks(place: Place, size: int, begin: int = 0, end: int | None = None) -> Iterator[bytes | Damage]:
    """Streams a file of lines as blocks of about `size` bytes of whole lines.

    Args:
        place: the file; compressed ones can be read from their beginning to their end only.
        size: of a block in bytes, decompressed.
        begin: only lines that begin at this byte or behind it.
        end: only lines that begin before this byte.

    Yields:
        Blocks, each of whole lines (the last of a file may lack its line feed; a byte order mark before the first is
        left out), and `Damage` in their order.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with open_plain(place) as file:
        mark = b"" if begin else codecs.BOM_UTF8
        if begin:
            file.seek(begin - 1)
            begin += _skip_line(file)[0] - 1
        left = end - begin if end is not None else float("inf")
        while left > 0:
            content, damage = _read(file, int(min(size, left)))
            if not content and not damage:
                return
            long = 0
            if not damage and not content.endswith(b"\n"):
                tail, damage = _line(file, LONGEST_LINE)
                content += tail
                if len(tail) >= LONGEST_LINE and not tail.endswith(b"\n"):
                    skipped, damage = _skip_line(file)
                    long = 1 + skipped
            left -= len(content) + long
            whole = content.rfind(b"\n") + 1 if damage or long else len(content)
            if whole:
                yield content[:whole].removeprefix(mark)
                mark = b""
            if long:
                yield Damage(f"longer than {LONGEST_LINE >> 20} MiB", 1)
            if damage:
                yield Damage(f"the file is truncated or corrupt from here on: {damage}", 0)
                return


def _read(file: BinaryIO, size: int) -> tuple[bytes, str]:
    """`size` bytes, fewer at the end of the file; and what went wrong after them, if anything did."""
    pieces, held = [], 0
    try:
        while held < size and (piece := file.read1(min(_PIECE, size - held))):  # type: ignore[attr-defined]
            pieces.append(piece)
            held += len(piece)
    except DAMAGE as error:
        return b"".join(pieces), str(error) or type(error).__name__
    return b"".join(pieces), ""


def _line(file: BinaryIO, most: int) -> tuple[bytes, str]:
    """The rest of a line, or `most` bytes of it; and what went wrong after them."""
    pieces, held = [], 0
    try:
        while held < most and (piece := file.readline(min(_PIECE, most - held))):
            pieces.append(piece)
            held += len(piece)
            if piece.endswith(b"\n"):
                break
    except DAMAGE as error:
        return b"".join(pieces), str(error) or type(error).__name__
    return b"".join(pieces), ""


def _skip_line(file: BinaryIO) -> tuple[int, str]:
    """How long the rest of a line is; and what went wrong after it."""
    skipped = 0
    try:
        while piece := file.readline(_PIECE):
            skipped += len(piece)
            if piece.endswith(b"\n"):
                break
    except DAMAGE as error:
        return skipped, str(error) or type(error).__name__
    return skipped, ""


def line_ranges(place: Place, size: int) -> list[tuple[int, int, int]]:
    """Ranges of about `size` bytes of a file of lines: begin, end, and how many lines begin before the range's first.

    A compressed file, or one that isn't local, is one range: its lines can't be counted without reading all of it.
    """
    if not isinstance(place, Path) or not place.is_file():
        return [(0, -1, 0)]
    total = place.stat().st_size
    ranges: list[tuple[int, int, int]] = []
    lines, last = 0, b"\n"
    with place.open("rb") as file:
        if total <= size or file.read(4).startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            return [(0, -1, 0)]
        file.seek(0)
        for begin in range(0, total, size):
            end = min(begin + size, total)
            ranges.append((begin, end, lines + (last != b"\n")))
            for at in range(begin, end, 1 << 20):
                piece = file.read(min(1 << 20, end - at))
                lines, last = lines + piece.count(b"\n"), piece[-1:]
    return ranges
