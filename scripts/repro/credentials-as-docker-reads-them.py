#!/usr/bin/env python3
"""Entries of ~/.docker/config.json that Docker and Podman read: base64 with line breaks (coreutils' `base64` wraps
at 76 columns, and a service account's key is long), an empty identitytoken (skopeo and Docker: both work), a registrytoken
(Docker, nerdctl and crane know it)."""

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

import base64

PASSWORD = "p" * 90
BASIC = base64.b64encode(("u:" + PASSWORD).encode()).decode()
token = ""


def before(request):
    given = request.headers.get("Authorization")
    if token:
        if given != "Bearer " + token:
            request.reply(
                401, b"{}", WWW_Authenticate=f'Bearer realm="http://{HOST}/token",service="s"'
            )
            return True
    elif given != "Basic " + BASIC:
        request.reply(401, b"{}", WWW_Authenticate='Basic realm="r"')
        return True


layout = Layout()
image = layout.image([BASE, layer({"n": os.urandom(64)})], None)
blobs = layout.blobs


def serve(request):
    path = request.path.partition("?")[0]
    early = before(request)
    if early:
        return early
    what = path.rsplit("/", 1)[1]
    body = blobs[image["digest"]] if what == "1" else blobs.get(what)
    if body is None:
        return False
    if "/manifests/" in path:
        request.reply(200, body, Content_Type=image["mediaType"])
    else:
        request.reply(200, body)
    return True


def pull(config):
    home = os.path.join(WORK, f"home{len(os.listdir(WORK))}")
    os.makedirs(ENV["DOCKER_CONFIG"], exist_ok=True)
    with open(os.path.join(ENV["DOCKER_CONFIG"], "config.json"), "w") as file:
        json.dump(config, file)
    return mica("pull", HOST + "/repro/pull:1", env={"MICABOX_HOME": home})


wrapped = base64.encodebytes(("u:" + PASSWORD).encode()).decode()
for title, auths in [
    ("plain", {HOST: {"auth": BASIC}}),
    ("base64 with line breaks", {HOST: {"auth": wrapped}}),
    ("an empty identitytoken beside auth", {HOST: {"auth": BASIC, "identitytoken": ""}}),
]:
    code, text = pull({"auths": auths})
    check(title, code == 0, text)
token = "tok"
code, text = pull({"auths": {HOST: {"registrytoken": "tok"}}})
check("registrytoken", code == 0, text)

sys.exit(1 if bad else 0)
