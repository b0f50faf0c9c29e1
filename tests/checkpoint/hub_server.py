"""A hub of one's own: the few endpoints that huggingface_hub asks for one repository's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository, and what was asked of it."""

    name: str
    folder: Path
    token: str | None = None
    """With it the repository is gated."""
    failure: int | None = None
    """Status that answers everything."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def listing(self) -> list[dict]:
        return [
            {
                "type": "file",
                "path": str(path.relative_to(self.folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest(),
            }
            for path in self.files()
        ]

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        api, resolve = f"/api/models/{self.name}", f"/{self.name}/resolve/{COMMIT}/"
        if self.failure:
            return self.failure, {}, b""
        if not path.startswith((api, resolve)):
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if self.token not in (None, token):
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if path.startswith(resolve):
            content = (self.folder / path.removeprefix(resolve)).read_bytes()
            etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, content
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": file["path"], "size": file["size"]} for file in self.listing()]
            return 200, {}, json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode()
        if path == f"{api}/tree/{COMMIT}":
            return 200, {}, json.dumps(self.listing()).encode()
        return 404, {"X-Error-Code": "RevisionNotFound"}, b""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            hub.asked.append(f"{self.command} {path}")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            status, headers, body = hub.answer(path, token)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
