"""Images as a hostile builder makes them."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

TAR = "application/vnd.oci.image.layer.v1.tar"
EROFS = "application/vnd.erofs.layer.v1"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
BLOCK = 4096


def digest(data):
    """As OCI writes it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    """An OCI layout in a directory."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.blobs = self.directory / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data, media_type, name=None):
        """Adds a blob and returns its descriptor; under another digest's name if told to."""
        name = name or digest(data)
        self.blob_path(name).write_bytes(data)
        return {"mediaType": media_type, "digest": name, "size": len(data)}

    def blob_path(self, name):
        """Where a blob is."""
        return self.blobs / name.removeprefix("sha256:")

    def index(self, *manifests):
        """Says what there is."""
        document = {"schemaVersion": 2, "manifests": list(manifests)}
        (self.directory / "index.json").write_text(json.dumps(document))

    def image(self, layers, name="evil", config=None):
        """An image of `(blob, uncompressed, media type)`s; returns its manifest's descriptor."""
        descriptors = [self.blob(blob, media_type) for blob, _, media_type in layers]
        diff_ids = [digest(plain) for _, plain, _ in layers]
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": config or {"Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        config = self.blob(json.dumps(document).encode(), CONFIG)
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": descriptors,
        }
        manifest = self.blob(json.dumps(document).encode(), MANIFEST)
        manifest["annotations"] = {"org.opencontainers.image.ref.name": name}
        self.index(manifest)
        return manifest


def archive(*members):
    """An archive of `(name, type, fields)`s; `body` is a file's contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, fields in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            body = fields.pop("body", b"")
            member.size = len(body)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(body))
    return out.getvalue()


def plain(data):
    """A layer that isn't compressed."""
    return (data, data, TAR)


def gzipped(data):
    """A layer as most are."""
    return (gzip.compress(data, 6, mtime=0), data, TAR + "+gzip")


def box():
    """The archive of a userland: busybox, and what programs look for."""
    busybox = Path("/bin/busybox").read_bytes()
    members = [(name, tarfile.DIRTYPE, {"mode": 0o755}) for name in ("bin", "etc", "root", "tmp")]
    members.append(("bin/busybox", tarfile.REGTYPE, {"mode": 0o755, "body": busybox}))
    for applet in "cat dd echo grep ls mkdir nc ping sh sleep stat sync touch true wget".split():
        members.append((f"bin/{applet}", tarfile.SYMTYPE, {"linkname": "busybox"}))
    passwd = b"root:x:0:0:root:/root:/bin/sh\n"
    members.append(("etc/passwd", tarfile.REGTYPE, {"mode": 0o644, "body": passwd}))
    return archive(*members)


def load_box(world, name="box"):
    """Loads it into a store."""
    layout = Layout(world.path("box.oci"))
    config = {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]}
    layout.image([plain(box())], name, config)
    world.mica("load", "--name", name, layout.directory).worked()
