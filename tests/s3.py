"""A small server of the part of S3's protocol that pyarrow uses, in memory; and a client of one bucket.

Set `AXML_RAY_TEST_S3` to the address of another server, such as moto's or MinIO, to run the tests with that one.
"""

import hashlib
import io
import os
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from time import gmtime, strftime, time
from typing import BinaryIO
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import requests

SERVER_VARIABLE = "AXML_RAY_TEST_S3"
UNCHECKED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True)
class Object:
    content: bytes
    changed: float = field(default_factory=time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


def joined_chunks(stream: BinaryIO) -> bytes:
    """Read chunks, each a line with its size in hexadecimal, and its bytes; up to the one of size 0."""
    content = b""
    while size := int(stream.readline().split(b";")[0], 16):
        content += stream.read(size)
        stream.readline()
    return content


class Server(ThreadingHTTPServer):
    """A server of S3 on a free port; its buckets are dictionaries of objects by key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.buckets: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def fail(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def handle_request(self) -> None:
        address = urlsplit(self.path)
        name, _, key = unquote(address.path).lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        body = self.body()
        if "Authorization" not in self.headers:
            return self.fail(403, "AccessDenied")
        if self.command == "PUT" and not key:
            self.server.buckets[name] = {}
            return self.answer(200)
        bucket = self.server.buckets.get(name)
        if bucket is None:
            return self.fail(404, "NoSuchBucket")
        if not key and self.command == "POST":
            for gone in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                bucket.pop(gone, None)
            return self.answer(200, b"<DeleteResult/>")
        if not key:
            return self.answer(200, b"" if self.command == "HEAD" else self.listed(bucket, query))
        getattr(self, f"object_{self.command.lower()}")(bucket, key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def body(self) -> bytes:
        """Read what was sent: perhaps in chunks of HTTP, and these in chunks of S3 with checksums."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            sent = joined_chunks(self.rfile)
            self.rfile.readline()
        else:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_chunked = "aws-chunked" in self.headers.get("Content-Encoding", "")
        return joined_chunks(io.BytesIO(sent)) if is_chunked else sent

    def listed(self, bucket: dict[str, Object], query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        entries: dict[str, str] = {}
        for key, one in sorted(bucket.copy().items(), key=itemgetter(0)):  # other threads change it
            if not key.startswith(prefix) or key <= query.get("continuation-token", ""):
                continue
            below = key[len(prefix) :]
            if delimiter and delimiter in below:
                folder = prefix + below.split(delimiter)[0] + delimiter
                entries[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            else:
                changed = strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(one.changed))
                entries[key] = (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{changed}</LastModified>"
                    f"<ETag>{escape(one.etag)}</ETag><Size>{len(one.content)}</Size></Contents>"
                )
        most = int(query.get("max-keys", 1000))
        taken, more = list(entries)[:most], len(entries) > most
        token = f"<NextContinuationToken>{escape(taken[-1])}\x7f</NextContinuationToken>" if more and taken else ""
        text = "".join(entries[key] for key in taken)
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(taken)}</KeyCount>"
            f"{token}{text}</ListBucketResult>"
        ).encode()

    def object_head(self, bucket: dict[str, Object], key: str, query: dict[str, str], body: bytes) -> None:
        if key not in bucket:
            return self.fail(404, "NoSuchKey")
        one, status, content = bucket[key], 200, bucket[key].content
        headers = {"ETag": one.etag, "Last_Modified": formatdate(one.changed, usegmt=True)}
        if match := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
            status, content = 206, content[first : last + 1]
        self.answer(status, content, **headers)

    object_get = object_head

    def object_put(self, bucket: dict[str, Object], key: str, query: dict[str, str], body: bytes) -> None:
        one = Object(body)
        if "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
        else:
            bucket[key] = one
        self.answer(200, ETag=one.etag)

    def object_post(self, bucket: dict[str, Object], key: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            upload = os.urandom(8).hex()
            self.server.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = self.server.uploads.pop(query["uploadId"])
            bucket[key] = Object(b"".join(parts[number] for number in sorted(parts)))
            text = f"<CompleteMultipartUploadResult><Key>{escape(key)}</Key></CompleteMultipartUploadResult>"
        self.answer(200, text.encode())

    def object_delete(self, bucket: dict[str, Object], key: str, query: dict[str, str], body: bytes) -> None:
        bucket.pop(key, None)
        self.server.uploads.pop(query.get("uploadId", ""), None)
        self.answer(204)


@dataclass(frozen=True)
class Bucket:
    """A bucket, as another program sees it."""

    name: str
    server: str

    def ask(self, method: str, key: str = "", content: bytes = b"", query: str = "") -> bytes:
        address = f"{self.server}/{self.name}/{quote(key)}{query}" if key else f"{self.server}/{self.name}{query}"
        answer = requests.request(method, address, data=content, headers={"Authorization": UNCHECKED}, timeout=30)
        answer.raise_for_status()
        return answer.content

    def names(self) -> list[str]:
        """Return the keys of all objects, without the empty ones that represent directories."""
        keys = re.findall(r"<Key>(.*?)</Key>", self.ask("GET", query="?list-type=2").decode())
        return sorted(key for key in keys if not key.endswith("/"))

    def read(self, key: str) -> bytes:
        return self.ask("GET", key)

    def write(self, key: str, content: bytes) -> None:
        self.ask("PUT", key, content)

    def delete(self, key: str) -> None:
        self.ask("DELETE", key)
