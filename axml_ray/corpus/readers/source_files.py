"""Lists and opens source files: local files, glob patterns, and URLs of the stores that pyarrow supports."""

import fnmatch
import glob
import io
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

COMPRESSION_SUFFIXES = (".gz", ".zst", ".bz2", ".xz", ".lzma", ".lz4", ".zip")
STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Paths that mean another file in each process."""

SourceFile = Path | str
"""A local path, or a URL such as `s3://bucket/train.jsonl`."""


def is_url(file: Path | str) -> bool:
    """Return whether `file` is a URL, to be opened with a pyarrow file system."""
    return isinstance(file, str) and "://" in file


def format_suffix(file: SourceFile) -> str:
    """Return the suffix that names the format, in lower case and without compression: `.csv` of `a.csv.gz`."""
    return Path(without_compression(file.name if isinstance(file, Path) else file.partition("?")[0])).suffix


def without_compression(name: str) -> str:
    """Return a file name in lower case and without the suffix of a compression: `a.csv` of `A.csv.gz`."""
    name = name.lower()
    return next((name.removesuffix(end) for end in COMPRESSION_SUFFIXES if name.endswith(end)), name)


def list_files(pattern: Path | str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """List the files that a pattern names, sorted; local paths are absolute, as tasks may run in other directories.

    Args:
        pattern: a file; a directory, whose direct files with one of `suffixes` are taken, compressed or not; or a glob
            such as `"data/**/part-*.jsonl"`, which takes every file that it matches, whatever its suffix, and the
            files in a directory whose name has a suffix, such as Spark's `2020.parquet`. `~` is the home directory.
            Hidden files are only matched if the pattern names them. All of these may be URLs.
        suffixes: suffixes of the files that are taken from a directory.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a directory has no such file, the file is a stream, or pyarrow does not support the URL.
    """
    files: list[SourceFile]
    place: SourceFile = str(pattern)
    if is_url(pattern):
        files, is_directory = _list_url(str(pattern), suffixes)
    else:
        place = path = Path(pattern).expanduser().absolute()
        is_directory = path.is_dir()
        if is_directory:
            files = [file for file in path.iterdir() if _has_suffix(file.name, suffixes) and file.is_file()]
        elif path.exists():
            # A file is read more than once, and by other processes, which would find no text in a stream of this one.
            if not path.is_file() or str(path).startswith(STREAMS):
                raise ValueError(f"{path} is a stream, such as a pipe; write its content to a file, and name that")
            files = [path]
        else:  # Path.glob would also match hidden files, and it refuses absolute patterns.
            base = next(parent for parent in path.parents if parent.is_dir())  # its name may have brackets
            matches = glob.glob(str(path.relative_to(base)), root_dir=base, recursive=True)  # noqa: PTH207
            files = [base / name for name in matches if (base / name).is_file()]
            parts = [base / name for name in matches if (base / name).is_dir() and _has_suffix(name, suffixes)]
            files += [file for part in parts for file in list_files(part, suffixes) if file not in files]
    if files:
        return sorted(files)
    if not is_directory:
        raise FileNotFoundError(f"no file matches {str(pattern)!r}")
    patterns = ", ".join(f"*{suffix}" for suffix in suffixes)
    raise ValueError(f"no file to read ({patterns}) in the directory {place}")


def _list_url(url: str, suffixes: tuple[str, ...]) -> tuple[list[SourceFile], bool]:
    """List the files that a URL names, with its query (`?endpoint_override=…`); and return if it is a directory."""
    plain, separator, query = url.partition("?")
    parts = plain.split("/")
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    base, magic = "/".join(parts[:fixed]), parts[fixed:]
    try:
        store, path = fs.FileSystem.from_uri(base + separator + query)
        info = store.get_file_info(path)
        if info.type != fs.FileType.Directory:
            return [url] if info.type == fs.FileType.File else [], False
        # Not fsspec's glob: it silently omits subdirectories that it cannot list, and lists each one by a request.
        selector = fs.FileSelector(path, recursive=len(magic) > 1 or "**" in "".join(magic))
        infos = store.get_file_info(selector)
        inside = [info.path for info in infos if info.type == fs.FileType.File]
        directories = [info.path for info in infos if info.type == fs.FileType.Directory]
    except pa.ArrowInvalid as error:
        raise ValueError(f"{url}: {error}") from None
    below, parts = ([name.removeprefix(path).lstrip("/") for name in some] for some in (inside, directories))
    if magic:
        names, parts = ([name for name in some if _is_matched(name.split("/"), magic)] for some in (below, parts))
    else:
        names = [name for name in below if _has_suffix(name, suffixes)]
        parts = []

    def url_of(name: str) -> str:
        """Return the URL of a name of the store, with its blanks and percent signs escaped."""
        escaped = quote(name, safe="/!$&'()*+,;=:@~")
        return f"{base.rstrip('/')}/{escaped}{separator}{query}"

    urls: list[SourceFile] = [*map(url_of, names)]
    for name in parts:
        if _has_suffix(name.rpartition("/")[2], suffixes):
            urls += [file for file in _list_url(url_of(name), suffixes)[0] if file not in urls]
    return urls, not magic


def _is_matched(names: list[str], pattern: list[str]) -> bool:
    """Return whether a glob matches a path that is not hidden."""
    return not any(name.startswith(".") for name in names) and _parts_match(names, pattern)


def _parts_match(names: list[str], pattern: list[str]) -> bool:
    """Return whether a path matches a pattern, part by part; `**` matches any number of directories."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        rest = pattern[1:] or ["*"]
        return any(_parts_match(names[begin:], rest) for begin in range(len(names)))
    return bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _parts_match(names[1:], pattern[1:])


def _has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    return without_compression(name).endswith(suffixes) and not name.startswith(".")


def local_path(file: SourceFile) -> Path | None:
    """Return the path of a local file, which may be given as a URL; None for a file in a store."""
    if not is_url(file):
        return Path(file)
    store, path = fs.FileSystem.from_uri(str(file))
    return Path(path) if isinstance(store, fs.LocalFileSystem) else None


def file_size(file: SourceFile) -> int:
    """Return the size of a file in bytes; for the directory of a Python package, that of all its source files."""
    path = local_path(file)
    if path is None:
        store, name = fs.FileSystem.from_uri(str(file))
        return store.get_file_info(name).size or 0
    return sum(each.stat().st_size for each in (path.rglob("*.py") if path.is_dir() else [path]) if each.is_file())


def stored_version(url: str) -> str:
    """Return what a store identifies a file's content by: its size and entity tag, or else the time of its change."""
    store, path = fs.FileSystem.from_uri(url)
    info = store.get_file_info(path)
    with store.open_input_stream(path) as stream:
        metadata = {key.lower(): value for key, value in (stream.metadata() or {}).items()}
    return f"{info.size}:{metadata[b'etag'].decode() if b'etag' in metadata else info.mtime_ns}"


def is_unreachable(error: Exception, file: SourceFile) -> bool:
    """Return whether `error` means that a file cannot be reached, rather than that its content is damaged.

    A damaged file costs some records; leaving out an unreachable one would silently lose all of them. Arrow's readers
    raise an OSError without a number both for damaged content and for a store that does not answer.
    """
    return isinstance(error, OSError) and (error.errno is not None or is_url(file))


def open_raw(file: SourceFile) -> BinaryIO:
    """Open a file as stored, without decompression, as a seekable stream."""
    if isinstance(file, Path):
        return file.open("rb")
    store, path = fs.FileSystem.from_uri(file)
    return io.BufferedReader(store.open_input_file(path), 1 << 20)
