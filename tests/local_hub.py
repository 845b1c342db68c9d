"""A hub as a small HTTP server on this machine: what huggingface_hub asks to load and to upload."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories as {id: {file: bytes}}, and the requests that came in."""

    def __init__(self):
        self.repositories = {}
        self.requests = []
        self.tokens = {"hf_write": True}  # token -> whether it may write
        self.created = {}  # id -> what was asked for
        self.commits = []  # id, branch, names of the files
        self.large = {}  # hash -> bytes that came by LFS
        hub = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.requests.append(self.path)
                if "/tree/" in self.path:
                    self.list(self.path.removeprefix("/api/models/").split("/tree/")[0])
                elif self.path.startswith("/api/models/"):
                    self.describe(self.path.removeprefix("/api/models/").split("/revision/")[0].split("?")[0])
                else:
                    repository, _, place = self.path.lstrip("/").partition("/resolve/")
                    self.file(repository, place.split("/", 1)[1])

            do_HEAD = do_GET

            def describe(self, repository):
                if repository not in hub.repositories:
                    return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                if "secret" in repository:
                    return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
                if "/revision/" in self.path and not self.path.split("/revision/")[1].startswith(("main", COMMIT)):
                    return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                files = [{"rfilename": name} for name in hub.repositories[repository]]
                facts = {"id": repository, "sha": COMMIT, "siblings": files, "cardData": {"license": "apache-2.0"}}
                return self.reply(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

            def list(self, repository):
                files = hub.repositories[repository].items()
                rows = [{"type": "file", "path": name, "oid": "0", "size": len(data)} for name, data in files]
                return self.reply(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

            def file(self, repository, name):
                content = hub.repositories.get(repository, {}).get(name)
                if content is None:
                    return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
                etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                return self.reply(200, content, etag)

            def do_POST(self):
                hub.requests.append(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/api/validate-yaml":
                    wrong = b'base_model: "/' in body or b"---" not in body
                    return self.json({"errors": [{"message": "base_model"}], "warnings": []}, 400 if wrong else 200)
                may_write = hub.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
                if not may_write:
                    return self.json({"error": "no"}, 401 if may_write is None else 403)
                if self.path == "/api/repos/create":
                    return self.create(json.loads(body))
                if "/info/lfs/objects/batch" in self.path:
                    return self.json({"transfer": "basic", "objects": list(map(self.lfs, json.loads(body)["objects"]))})
                repository, _, action = self.path.removeprefix("/api/models/").partition("/preupload/")
                if action:
                    return self.preupload(json.loads(body)["files"])
                repository, _, branch = self.path.removeprefix("/api/models/").partition("/commit/")
                if branch:
                    return self.commit(repository, branch, [json.loads(line) for line in body.splitlines()])
                return self.json({}, 200 if "/branch/" in self.path else 404)

            def do_PUT(self):
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.large[self.path.rsplit("/", 1)[1]] = content
                return self.reply(200, b"", {})

            def create(self, asked):
                name = f"{asked['organization'] or 'me'}/{asked['name']}"
                hub.created[name] = asked
                there = name in hub.repositories
                hub.repositories.setdefault(name, {})
                return self.json({"url": f"{hub.address}/{name}", "id": name}, 409 if there else 200)

            def preupload(self, files):
                told = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
                return self.json({"files": told})

            def lfs(self, asked):
                href = f"{hub.address}/lfs/{asked['oid']}"
                return {**asked, "authenticated": True, "actions": {"upload": {"href": href, "header": {}}}}

            def commit(self, repository, branch, lines):
                found = {}
                for line in lines:
                    value = line["value"]
                    if line["key"] == "file":
                        found[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "lfsFile":
                        found[value["path"]] = hub.large[value["oid"]]
                hub.repositories[repository].update(found)
                hub.commits.append((repository, branch, sorted(found)))
                url = f"{hub.address}/{repository}/commit/{COMMIT}"
                return self.json({"success": True, "commitOid": COMMIT, "commitUrl": url})

            def json(self, told, status=200):
                return self.reply(status, json.dumps(told).encode(), {"Content-Type": "application/json"})

            def reply(self, status, body, headers):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def serve(hub, monkeypatch, cache):
    """Make huggingface_hub talk to this one, and keep what it loads in `cache`."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its protocol is spoken by a program of its own
