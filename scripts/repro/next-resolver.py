#!/usr/bin/env python3
"""The first of two resolvers answers SERVFAIL or REFUSED, as a VPN's for names that are not its own. The C library, Docker
(since libnetwork#1664) and dnsmasq ask the next one; a sandbox has only mica's resolver, so mica does."""

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


BUSYBOX = os.environ.get("BUSYBOX", "/bin/busybox")
BACKEND = os.environ.get("BACKEND", "host")


def box_layer(links="", more=None):
    """A root with a static busybox (apt: busybox-static), and `more` links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def put(name, data=None, to=None, mode=0o755, directory=False):
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            if to is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, to
            elif directory:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data) if data is not None else None)

        put("bin", directory=True)
        put("tmp", directory=True, mode=0o1777)
        with open(BUSYBOX, "rb") as file:
            put("bin/busybox", file.read())
        for name in "sh cat echo sleep nc nslookup printf wc awk grep seq timeout df pwd ls readlink true env".split():
            put("bin/" + name, to="busybox")
        for name, to in (more or {}).items():
            put(name, to=to)
    return out.getvalue()


def run(*words, timeout=60):
    return mica("run", "--rm", "-q", "--backend", BACKEND, *words, timeout=timeout)


import socket
import struct
import threading


def resolver(answer, delay=0.0):
    """Serves DNS on a port of its own: `answer` is an rcode; 0 comes with an address."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind(("127.0.0.1", 0))

    def send(query, client):
        end = 12
        while query[end]:
            end += query[end] + 1
        end += 5
        is_a = query[end - 4 : end - 2] == b"\0\1"
        found = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x0a\x09\x08\x07" if answer == 0 and is_a else b""
        head = (
            query[:2]
            + bytes([0x81, 0x80 | answer])
            + b"\0\1"
            + struct.pack(">H", 1 if found else 0)
            + b"\0\0\0\0"
        )
        sock.sendto(head + query[12:end] + found, client)

    def serve():
        while True:
            query, client = sock.recvfrom(4096)
            if delay:
                threading.Timer(delay, send, (query, client)).start()
            else:
                send(query, client)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{sock.getsockname()[1]}"


layout = Layout()
code, text = mica("load", layout.save([layout.image([box_layer()], "repro/dns:1")]))
check("load", code == 0, text)

good = resolver(0)
for title, first in [
    ("no other resolver", None),
    ("SERVFAIL", resolver(2)),
    ("REFUSED", resolver(5)),
    ("NOTIMP", resolver(4)),
]:
    words = [word for one in (first, good) if one for word in ("--dns", one)]
    code, text = run(*words, "repro/dns:1", "nslookup", "a.test")
    check("after " + title, "10.9.8.7" in text, text)

sys.exit(1 if bad else 0)
