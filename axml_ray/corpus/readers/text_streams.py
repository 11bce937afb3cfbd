"""Opens text files as streams of UTF-8 lines, whatever their compression, encoding and line ends.

The first bytes of a file, not its name, determine all three. What is not text, such as an Excel workbook, is an error.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa

from axml_ray.corpus.readers.source_files import SourceFile, is_unreachable, open_raw

_HEAD_BYTES = 1 << 20
"""Bytes in which line ends are looked for; carriage returns are, if they are more than the line feeds."""
_BUFFER_BYTES = 128 << 10


def open_decompressed(file: SourceFile) -> BinaryIO:
    """Open a file and decompress it if it is compressed. Reading damaged content raises an EOFError with the reason.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is an archive of several files, or encrypted.
    """
    stream = open_raw(file)
    head = stream.peek(16)  # type: ignore[attr-defined]
    for magic, decompressor in _DECOMPRESSORS.items():
        if re.match(magic, head):
            return io.BufferedReader(_DecompressedStream(file, decompressor(stream)), _BUFFER_BYTES)
    return stream


def open_text(file: SourceFile) -> BinaryIO:
    """Open a text file as UTF-8 with line feeds: decompressed, decoded from UTF-16 or UTF-32, and with CR made LF.

    CRLF stays as it is, and so does a byte order mark of UTF-8. Reading damaged content raises an EOFError with the
    reason.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not text; the message is the reason, without the file's name.
    """
    stream = open_decompressed(file)
    try:
        head = stream.peek(512)  # type: ignore[attr-defined]
    except EOFError:
        return stream  # reading will raise it again
    for magic, reason in _OTHER_FORMATS.items():
        if re.match(magic, head, re.DOTALL):
            raise ValueError(f"it is {reason}")
    encoding = next((name for magic, name in _ENCODINGS.items() if re.match(magic, head)), None)
    carriage_returns = _ends_lines_with_carriage_returns(file, head, encoding)
    if encoding or carriage_returns:
        return io.BufferedReader(_ConvertedStream(stream, encoding, carriage_returns), _BUFFER_BYTES)
    return stream


def read_bytes(stream: BinaryIO, size: int) -> tuple[bytes, str]:
    """Return `size` bytes, or fewer at the end of the file, and an error message if reading failed after them."""
    pieces, length = [], 0
    try:
        while length < size and (piece := stream.read1(min(_BUFFER_BYTES, size - length))):  # type: ignore[attr-defined]
            pieces.append(piece)
            length += len(piece)
    except EOFError as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), ""


def _ends_lines_with_carriage_returns(file: SourceFile, head: bytes, encoding: str | None) -> bool:
    beginning = head.decode(encoding or "latin-1", "ignore")
    if "\n" in beginning and ("\r" not in beginning or "\r\n" in beginning):
        return False
    with open_decompressed(file) as stream:  # a second time, because not every stream can go back
        text = read_bytes(stream, _HEAD_BYTES)[0].decode(encoding or "latin-1", "ignore")
    return "\r\n" not in text and text.count("\r") > text.count("\n")  # Excel for Mac has line feeds within cells


class _DecompressedStream(io.RawIOBase):
    """Gives what a decompressor reads, with one kind of exception for damage."""

    def __init__(self, file: SourceFile, read: Callable[[int], bytes]):
        self._file, self._read = file, read
        self._damage = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._damage:  # found by `peek`
            raise EOFError(self._damage)
        try:
            content = self._read(len(buffer))
        except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
            if is_unreachable(error, self._file) and not isinstance(error, gzip.BadGzipFile):
                raise
            self._damage = str(error) or type(error).__name__
            raise EOFError(self._damage) from None
        buffer[: len(content)] = content
        return len(content)


class _ConvertedStream(io.RawIOBase):
    """Gives a text as UTF-8, and its carriage returns, if they end lines, as line feeds.

    Without an encoding, the bytes remain as they are but for the line ends.
    """

    def __init__(self, stream: BinaryIO, encoding: str | None, carriage_returns: bool):
        newline = None if carriage_returns else ""
        self._text = io.TextIOWrapper(stream, encoding or "latin-1", "surrogatepass" if encoding else None, newline)
        self._encoding = "utf-8" if encoding else "latin-1"
        self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            # Half of a surrogate pair becomes a question mark.
            self._content = self._content or self._text.read(8192).encode(self._encoding, "replace")
        except UnicodeDecodeError as error:
            raise EOFError(f"not {error.encoding}: {error.reason}") from None
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size


def _arrow_decompressor(codec: str) -> Callable[[BinaryIO], Callable[[int], bytes]]:
    """Return a decompressor of pyarrow, which takes the end of a truncated file for its regular end."""
    return lambda stream: pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec).read


def _open_zip(stream: BinaryIO) -> Callable[[int], bytes]:
    """Open the only file of a zip archive."""
    try:
        archive = zipfile.ZipFile(stream)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if {"[Content_Types].xml", "mimetype"} & {*names}:
            raise ValueError(f"it is {_OFFICE}")
        if len(names) != 1:
            raise ValueError(f"it is a zip archive of {len(names)} files; unpack it and name those to be read")
        return archive.open(names[0]).read1  # type: ignore[attr-defined]
    # zipfile raises RuntimeError for an encrypted member, and a subclass of it for a compression that it lacks.
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise ValueError(f"it is a zip archive that cannot be read; unpack it: {error}") from None


_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], Callable[[int], bytes]]] = {
    rb"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream).read1,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": lambda stream: bz2.BZ2File(stream).read1,
    rb"\xfd7zXZ\0": lambda stream: lzma.LZMAFile(stream).read1,  # noqa: SIM115, as its caller closes the stream
    rb"\x5d\0\0": lambda stream: lzma.LZMAFile(stream).read1,  # noqa: SIM115
    rb"(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)": _arrow_decompressor("zstd"),  # some begin with a frame to skip
    rb"\x04\x22\x4d\x18": _arrow_decompressor("lz4"),
    rb"PK(\x03\x04|\x05\x06)": _open_zip,
}
"""Decompressors by the regular expression of a file's first bytes. Each gives a method like `BinaryIO.read1`."""
_OFFICE = "an Excel, Word or LibreOffice file; save its table as 'CSV UTF-8' and name that file"
_OTHER_FORMATS = {
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _OFFICE,
    rb"\x1f\x9d": "a file of the program compress; unpack it with uncompress",
    rb"%PDF-": "a PDF; extract its text, for instance with pdftotext, into JSON lines or CSV",
    rb"\{\\rtf": "a file in rich text format; save it as plain text",
    rb"PAR1\x15": "a Parquet file; let its name end in .parquet, or set corpus.source to parquet",
    rb"ARROW1\0": "an Arrow file; let its name end in .arrow, or set corpus.source to datasets",
    rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|.{257}ustar": "an archive of files; unpack it and name those to be read",
    rb"SQLite format 3\0": "an SQLite database; export its table as CSV",
}
"""What is wrong with files that are no text, by the regular expression of their first bytes."""
_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    rb"([\t\r\n -~]\0){2}": "utf-16-le",  # without a byte order mark: two characters of ASCII, as in RFC 4627
    rb"(\0[\t\r\n -~]){2}": "utf-16-be",
}
"""Encodings by the regular expression of a decompressed file's first bytes; all other files should be in UTF-8."""
