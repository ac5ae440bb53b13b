#!/usr/bin/env python3
"""A registry (Google's, and many proxies) answers 411 to a POST or PUT without Content-Length. Docker, skopeo and crane send
`Content-Length: 0`, and so does a push."""

import atexit
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

MICA = os.environ.get("MICA", "mica")
WORK = tempfile.mkdtemp(prefix="mica-repro-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
ENV = dict(
    os.environ, MICABOX_HOME=os.path.join(WORK, "home"), DOCKER_CONFIG=os.path.join(WORK, "docker")
)


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def mica(*words, **more):
    env = dict(ENV, **more.pop("env", {}))
    done = subprocess.run(
        [MICA, *words],
        check=False,
        env=env,
        capture_output=True,
        text=True,
        timeout=more.pop("timeout", 120),
        **more,
    )
    return done.returncode, done.stdout + done.stderr


def layer(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return out.getvalue()


class Layout:
    """An OCI image layout in memory."""

    def __init__(self):
        self.blobs, self.index = {}, []

    def add(self, data, kind, **more):
        self.blobs[sha(data)] = data
        return dict(mediaType=kind, digest=sha(data), size=len(data), **more)

    def image(self, layers, name=None, change=None, **more):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [sha(one) for one in layers]},
        }
        if change:
            change(config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.add(
                json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": [
                self.add(gzip.compress(one, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
                for one in layers
            ],
        }
        manifest.update(more)
        entry = self.add(json.dumps(manifest).encode(), manifest["mediaType"])
        if name:
            entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        return entry

    def save(self, entries):
        path = os.path.join(WORK, "image.tar")
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": entries,
        }
        with tarfile.open(path, "w") as tar:

            def put(name, data):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))

            put("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            put("index.json", json.dumps(index).encode())
            for digest, data in self.blobs.items():
                put("blobs/sha256/" + digest[7:], data)
        return path


BASE = layer({"hello": b"hello\n"})
bad = []


def check(what, ok, seen=""):
    print(("ok    " if ok else "WRONG ") + what + ("" if ok else ": " + str(seen).strip()[:300]))
    if not ok:
        bad.append(what)


import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def any(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not serve(self):
            self.reply(404, b"{}")

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = any


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
HOST = f"127.0.0.1:{server.server_address[1]}"


def before(request):
    if (
        request.command in ("POST", "PUT", "PATCH")
        and request.headers.get("Content-Length") is None
    ):
        request.reply(411, b"length required")
        return True


uploads, tags, seen = {}, {}, []


def serve(request):
    path, _, _query = request.path.partition("?")
    seen.append((request.command, request.path, request.headers.get("Content-Length")))
    early = before(request)
    if early:
        return early
    if request.command == "HEAD":
        request.reply(404)
    elif request.command == "POST":
        place = path + str(len(uploads))
        uploads[place] = b""
        request.reply(202, Location=place, Range="0-0")
    elif request.command == "PATCH":
        uploads[path] += request.body
        request.reply(202, Location=path, Range=f"0-{len(uploads[path]) - 1}")
    elif "/uploads/" in path:
        request.reply(201, Location=path)
    else:
        tags[path.rsplit("/", 1)[1]] = request.body
        request.reply(201)
    return True


layout = Layout()
code, text = mica("load", layout.save([layout.image([BASE], HOST + "/repro/push:1")]))
check("load", code == 0, text)

code, text = mica("push", HOST + "/repro/push:1")
check("push", code == 0 and "1" in tags, text)
for method, path, length in seen:
    if method in ("POST", "PUT", "PATCH"):
        check(f"{method} has a length", length is not None, path)

sys.exit(1 if bad else 0)
