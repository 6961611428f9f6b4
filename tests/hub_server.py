"""A model hub on this machine: the part of its protocol that downloads use."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: The only token that opens what is gated.
TOKEN = "hf_opens"  # noqa: S105 - it opens nothing else
_INFO = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Repository:
    """A model on the hub: the files in `folder`, at the commit that each revision means."""

    folder: Path
    revisions: Mapping[str, str]
    is_gated: bool = False

    def commit(self, revision: str) -> str | None:
        commits = self.revisions.values()
        return revision if revision in commits else self.revisions.get(revision)

    @property
    def files(self) -> list[Path]:
        return sorted(file for file in self.folder.rglob("*") if file.is_file())


def commit(number: int) -> str:
    """A commit's hash."""
    return f"{number:040x}"


class Hub(ThreadingHTTPServer):
    """Serves `repositories` by their names.

    Attributes:
        fetched: the files that were downloaded, each as `name/path`.
    """

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = repositories
        self.fetched: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    """Such a hub, while it is asked."""
    with Hub(repositories) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = next(filter(None, (form.fullmatch(path) for form in (_TREE, _INFO, _FILE))), None)
        if asked is None:
            return self._refuse(404, "EntryNotFound")
        repository = self.server.repositories.get(asked["name"])
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        # Of what is gated the hub tells everything but the content.
        if repository.is_gated and asked.re is _FILE and not self._has_token():
            return self._refuse(401, "GatedRepo")
        found = repository.commit(asked["revision"] or "main")
        if found is None:
            return self._refuse(404, "RevisionNotFound")
        if asked.re is _INFO:
            return self._json({"id": asked["name"], "sha": found, "siblings": []})
        if asked.re is _TREE:
            return self._json([_entry(file, repository.folder) for file in repository.files])
        file = repository.folder / asked["path"]
        if file not in repository.files:
            return self._refuse(404, "EntryNotFound")
        if self.command == "GET":
            self.server.fetched.append(f"{asked['name']}/{asked['path']}")
        headers = {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": found}
        return self._send(200, file.read_bytes(), headers)

    def _has_token(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def _json(self, body: object) -> None:
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: what is asked shows in what is downloaded."""


def _entry(file: Path, folder: Path) -> dict[str, object]:
    """What the hub's list of files says of one."""
    path = str(file.relative_to(folder))
    return {"type": "file", "path": path, "size": file.stat().st_size, "oid": _digest(file)}


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
