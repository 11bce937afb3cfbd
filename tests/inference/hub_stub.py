"""A small server with the part of the Hugging Face Hub's HTTP API that publishing and downloading a model needs."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN = "hf_token_of_the_stub"
LICENCES = ("apache-2.0", "cc-by-4.0", "mit", "other")
LFS = (".safetensors", ".parquet")


@dataclass
class Repository:
    """A repository: the files of each commit, the newest last, and which of them were uploaded as large files."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    large: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, bytes], message: str) -> str:
        """Add a commit, and return its id."""
        digest = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[digest] = files
        self.messages.append(message)
        return digest

    @property
    def head(self) -> str:
        """The id of the newest commit."""
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the newest commit."""
        return self.commits[self.head]


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, code: str = "", content: Any = None):
        super().__init__(code)
        self.status, self.code, self.content = status, code, content


class Hub(ThreadingHTTPServer):
    """The server. Attributes: `repositories` by id; `requests`, method and path of each; `blobs` by SHA-256."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running() -> Iterator[Hub]:
    """Serve in a thread."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        for method, pattern, answer in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method:
                try:
                    answer(self, body, *match.groups())
                except Refused as refused:
                    self._send(
                        refused.status, refused.content or {"error": refused.code}, {"X-Error-Code": refused.code}
                    )
                return
        self._send(404, {"error": f"no route {self.command} {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, name: str, *, writes: bool = False) -> Repository:
        repository = self.server.repositories.get(name)
        if (writes or (repository and repository.private)) and not self._has_token:
            raise Refused(401, "RepoNotFound")
        if repository is None:
            raise Refused(404, "RepoNotFound")
        return repository

    def _files(self, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        repository = self._repository(name)
        commit = repository.head if revision == "main" else revision
        if commit not in repository.commits:
            raise Refused(404, "RevisionNotFound")
        return commit, repository.commits[commit]

    def create(self, body: bytes) -> None:
        """Make a repository, which the Hub gives a first commit."""
        if not self._has_token:
            raise Refused(401)
        given = json.loads(body)
        name = f"{given['organization'] or 'ann'}/{given['name']}"
        url = {"url": f"{self.server.endpoint}/{name}"}
        if name in self.server.repositories:
            raise Refused(409, content=url)
        repository = self.server.repositories[name] = Repository(given.get("visibility") == "private")
        repository.commit({".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}, "initial commit")
        self._send(200, url)

    def validate(self, body: bytes) -> None:
        """Check the header of a model card."""
        header = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
        licence = header.get("license")
        if licence is not None and licence not in LICENCES:
            raise Refused(
                400, content={"errors": [{"message": '"license" is not one of the licenses'}], "warnings": []}
            )
        self._send(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, name: str) -> None:
        """Say which files are large."""
        self._repository(name, writes=True)
        modes = {file["path"]: "lfs" if file["path"].endswith(LFS) else "regular" for file in json.loads(body)["files"]}
        files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
        self._send(200, {"files": files})

    def batch(self, body: bytes, name: str) -> None:
        """Say where to upload large files; those that are there need no upload."""
        self._repository(name, writes=True)
        objects = []
        for each in json.loads(body)["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.server.endpoint}/lfs/{each['oid']}"}}}
            objects.append(each | ({} if each["oid"] in self.server.blobs else upload))
        self._send(200, {"objects": objects})

    def upload(self, body: bytes, digest: str) -> None:
        """Store a large file."""
        assert hashlib.sha256(body).hexdigest() == digest
        self.server.blobs[digest] = body
        self._send(200, {})

    def commit(self, body: bytes, name: str) -> None:
        """Make a commit of lines of JSON."""
        repository = self._repository(name, writes=True)
        files, message = dict(repository.files), ""
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                message = value["summary"]
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
                repository.large.add(value["path"])
            else:
                assert operation["key"] == "deletedFile"
                del files[value["path"]]
        digest = repository.commit(files, message)
        self._send(200, {"commitUrl": f"{self.server.endpoint}/{name}/commit/{digest}", "commitOid": digest})

    def tree(self, _: bytes, name: str, revision: str) -> None:
        """List all files."""
        _, files = self._files(name, revision)
        self._send(200, [{"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                         for path, content in files.items()])  # fmt: skip

    def resolve(self, _: bytes, name: str, revision: str, path: str) -> None:
        """Return a file."""
        commit, files = self._files(name, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound")
        content = files[path]
        etag = hashlib.sha256(content) if path.endswith(LFS) else hashlib.sha1(content)
        self._send(200, content, {"X-Repo-Commit": commit, "ETag": f'"{etag.hexdigest()}"'})


Answer = Callable[..., None]
NAME = "([^/]+/[^/]+)"
ROUTES: list[tuple[tuple[str, ...], str, Answer]] = [
    (("POST",), "/api/repos/create", Handler.create),
    (("POST",), "/api/validate-yaml", Handler.validate),
    (("POST",), f"/api/models/{NAME}/preupload/main", Handler.preupload),
    (("POST",), rf"/{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    (("PUT",), "/lfs/([0-9a-f]{64})", Handler.upload),
    (("POST",), f"/api/models/{NAME}/commit/main", Handler.commit),
    (("GET",), f"/api/models/{NAME}/tree/([^/]+)", Handler.tree),
    (("GET", "HEAD"), f"/{NAME}/resolve/([^/]+)/(.+)", Handler.resolve),
]
