"""Hostile images, loaded by root."""

import json
import struct
import subprocess
import tarfile

import oci
from attempts import attempt
from world import MEBIBYTE, exists

FILE, DIRECTORY, LINK = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE
ESCAPES = "\x1b]0;taken\x07\x1b[2J\x1b[31m\x9b31m"


def load(world, layers, config=None, **options):
    """Loads an image of these layers."""
    layout = oci.Layout(world.path("evil.oci"))
    layout.image(layers, config=config)
    return world.mica("load", "--name", "evil", layout.directory, **options).harmless()


def nothing_stored(world, most=1):
    """No layer came of it."""
    layers = list(world.store.glob("layers/**/*.erofs"))
    assert not layers, f"{layers}"
    stored = world.stored()
    assert stored <= most * MEBIBYTE, f"{stored} bytes are left"


def shared_data(files, blocks):
    """An EROFS image whose files all have the same blocks (compact inodes, flat and plain)."""
    names = [b"f%06d" % number for number in range(files)]
    entries = [(b".", 0, 2), (b"..", 0, 2)]
    entries += [(name, number + 1, 1) for number, name in enumerate(names)]
    pages, page, used = [], [], 0

    def close():
        offset, heads, texts = 12 * len(page), b"", b""
        for name, inode, kind in page:
            heads += struct.pack("<QHBB", inode, offset + len(texts), kind, 0)
            texts += name
        pages.append(heads + texts)

    for entry in entries:
        if used + 12 + len(entry[0]) > oci.BLOCK:
            close()
            page, used = [], 0
        page.append(entry)
        used += 12 + len(entry[0])
    close()
    size = (len(pages) - 1) * oci.BLOCK + len(pages[-1])
    inode_blocks = -(-32 * (files + 1) // oci.BLOCK)
    directory = 1 + inode_blocks
    data = directory + len(pages)

    def inode(mode, links, length, start, number):
        return struct.pack("<HHHHIIIIHHI", 0, 0, mode, links, length, 0, start, number, 0, 0, 0)

    inodes = inode(0o40755, 2, size, directory, 1)
    for number in range(files):
        inodes += inode(0o100644, 1, blocks * oci.BLOCK, data, number + 2)
    head = bytearray(128)
    count = (0, 0xE0F5E1E2, 0, 0, 12, 0, 0, files + 1, 0, 0, data + blocks, 1, 0)
    struct.pack_into("<IIIBBHQQIIII", head, 0, *count[1:])
    head[48:64] = bytes(range(16))
    image = (bytes(1024) + bytes(head)).ljust(oci.BLOCK, b"\0")
    image += inodes.ljust(inode_blocks * oci.BLOCK, b"\0")
    image += b"".join(page.ljust(oci.BLOCK, b"\0") for page in pages)
    return image + b"A" * (blocks * oci.BLOCK)


@attempt(
    "image",
    "an EROFS layer of 900 bytes, 64 files of which have the same 8 MiB",
    "refused before 16 MiB were written",
    "`limits.layer-size` counts what is written",
)
def an_erofs_layer_of_shared_blocks(world):
    image = shared_data(64, 2048)
    packed = subprocess.run(["zstd", "-qc"], input=image, stdout=subprocess.PIPE, check=True)
    world.settings.write_text("[limits]\nlayer-size = 16_777_216\n")
    load(world, [(packed.stdout, image, oci.EROFS + "+zstd")]).refused("layer-size")
    nothing_stored(world, 17)


@attempt(
    "image",
    "a gzip layer of 250 KB with 120 MB of extended attributes, with 64 MiB allowed",
    "refused with less than 200 MiB of memory",
    "`limits.metadata-size`",
)
def a_layer_of_attributes(world):
    members = []
    for number in range(1000):
        records = {
            f"SCHILY.xattr.user.a{which}": f"{2 * number + which:08d}" + "AB"[which] * 59990
            for which in range(2)
        }
        members.append((f"f{number:06d}", FILE, {"pax_headers": records}))
    layer = oci.gzipped(oci.archive(*members))
    world.settings.write_text("[limits]\nmetadata-size = 67_108_864\n")
    load(world, [layer]).refused("metadata-size").within(200)
    nothing_stored(world)


@attempt(
    "image",
    "a layer of 60 KB that inflates to 64 MiB of zeros, with 16 MiB allowed",
    "refused at the limit",
    "`limits.layer-size`, `limits.compression-ratio`",
)
def a_compressed_bomb(world):
    body = bytes(64 * MEBIBYTE)
    layer = oci.gzipped(oci.archive(("zeros", FILE, {"body": body})))
    world.settings.write_text("[limits]\nlayer-size = 16_777_216\n")
    load(world, [layer]).refused("layer-size").within(200)
    nothing_stored(world)


@attempt(
    "image",
    "a zstd frame that asks for a window of 2 GiB",
    "refused before it was allocated",
    "`limits.zstd-window`",
)
def a_window_of_two_gibibytes(world):
    data = oci.archive(("file", FILE, {"body": b"x"}))
    # Magic, a descriptor without a content size, a window of 2^31 bytes, one raw block.
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3])
    frame += (len(data) << 3 | 1).to_bytes(3, "little") + data
    load(world, [(frame, data, oci.TAR + "+zstd")]).refused("zstd").within(200)
    nothing_stored(world)


@attempt(
    "image",
    "members named `../../x`, and a hard link to `../../etc/shadow`",
    "refused; nothing was written beside the store",
    "paths are cleaned as text and may not leave the layer",
)
def members_that_lead_out(world):
    for member in [
        ("../../escaped", FILE, {"body": b"x"}),
        ("a/../../escaped", DIRECTORY, {}),
        ("link", tarfile.LNKTYPE, {"linkname": "../../etc/shadow"}),
    ]:
        layout = oci.Layout(world.path(f"{len(list(world.directory.iterdir()))}.oci"))
        layout.image([oci.plain(oci.archive(member))])
        world.mica("load", layout.directory).refused("lead out")
    assert not exists(world.path("escaped"))
    nothing_stored(world)


@attempt(
    "image",
    "a symbolic link to a directory of the host's, and a file behind it",
    "the file is in the image; the host's directory is as it was",
    "layers are converted, never unpacked",
)
def a_file_behind_a_link(world):
    target = world.path("host")
    target.mkdir()
    members = [
        ("d", LINK, {"linkname": str(target)}),
        ("d/evil", FILE, {"body": b"x"}),
    ]
    load(world, [oci.plain(oci.archive(*members))])
    assert list(target.iterdir()) == []


@attempt(
    "image",
    "another blob under a layer's digest",
    "refused; nothing is stored",
    "SHA-256 over every blob",
)
def a_blob_that_is_another(world):
    layout = oci.Layout(world.path("evil.oci"))
    good = oci.archive(("file", FILE, {"body": b"good"}))
    layout.image([oci.plain(good)])
    layout.blob_path(oci.digest(good)).write_bytes(good.replace(b"good", b"evil"))
    world.mica("load", layout.directory).harmless().refused("digest")
    nothing_stored(world)


@attempt(
    "image",
    "an index that names itself, and a thousand others",
    "refused after 64 documents",
    "depth and number of documents are bounded",
)
def an_index_of_indexes(world):
    layout = oci.Layout(world.path("evil.oci"))
    below = None
    for level in range(100):
        document = {"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": [below] * 10}
        document["annotations"] = {"level": str(level)}
        if below is None:
            document["manifests"] = []
        below = layout.blob(json.dumps(document).encode(), oci.INDEX)
    layout.index(*[below] * 1000)
    world.mica("load", layout.directory).harmless().refused()


@attempt(
    "image",
    "a config of 64 MiB, and one of 100,000 nested lists",
    "refused",
    "documents have at most 4 MiB; the depth of JSON is bounded",
)
def large_and_deep_documents(world):
    for number, text in enumerate([b" " * (64 * MEBIBYTE), b"[" * 100_000]):
        layout = oci.Layout(world.path(f"{number}.oci"))
        manifest = layout.image([])
        document = json.loads(layout.blob_path(manifest["digest"]).read_text())
        document["config"] = layout.blob(text, oci.CONFIG)
        layout.index(layout.blob(json.dumps(document).encode(), oci.MANIFEST))
        world.mica("load", layout.directory).harmless().refused().within(200)
    nothing_stored(world)


@attempt(
    "image",
    "escape sequences in its command, labels, paths and media types",
    "shown as text",
    "one filter where text leaves mica",
)
def escape_sequences_in_an_image(world):
    config = {"Cmd": [ESCAPES], "Env": [f"A={ESCAPES}"], "Labels": {ESCAPES: ESCAPES}}
    layer = oci.plain(oci.archive((f"d/{ESCAPES}", FILE, {"body": b"x"})))
    load(world, [layer], config).worked()
    for command in [("images",), ("inspect", "evil"), ("store", "df")]:
        for tty in (False, True):
            world.mica(*command, tty=tty).harmless()
    world.mica("run", "--rm", "evil", tty=True, space=None).harmless()
    bad = oci.plain(oci.archive((f"{ESCAPES}/../..", FILE, {})))
    layout = oci.Layout(world.path("bad.oci"))
    layout.image([bad], name=ESCAPES)
    world.mica("load", layout.directory, tty=True).harmless().refused()
