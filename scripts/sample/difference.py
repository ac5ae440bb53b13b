"""What a second root filesystem archive changes against a first: a layer.

Both come from the same packages installed the same way, so that the difference
is exactly what installing more packages does. Entries are copied byte for byte,
headers included.
"""

import hashlib
import tarfile
from itertools import pairwise

from tarball import TarWriter


def _key(name):
    return name.removeprefix("./").rstrip("/")


def _index(archive):
    """Every entry by path, with all that must be equal for it to be unchanged."""
    entries = {}
    for member in archive:
        digest = None
        if member.isreg():
            digest = hashlib.file_digest(archive.extractfile(member), "sha256").digest()
        headers = member.pax_headers.items()
        xattrs = sorted(item for item in headers if item[0].startswith("SCHILY.xattr."))
        entries[_key(member.name)] = (
            member,
            (
                member.type,
                member.mode,
                member.uid,
                member.gid,
                member.mtime,
                member.linkname,
                member.devmajor,
                member.devminor,
                tuple(xattrs),
                digest,
            ),
        )
    return entries


def write_difference(lower_path, upper_path, out, mtime):
    """Writes to `out` the layer that turns the lower archive's tree into the upper's."""
    options = {"encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(lower_path, "r:", **options) as lower:
        before = _index(lower)
    with tarfile.open(upper_path, "r:", **options) as upper:
        after = _index(upper)
    changed = {
        path for path, (_, facts) in after.items() if path not in before or before[path][1] != facts
    }
    # A link is a name of its target: if the target is new, so is the link.
    for path, (member, _) in after.items():
        if member.islnk() and _key(member.linkname) in changed:
            changed.add(path)

    offsets = sorted(member.offset for member, _ in after.values())
    ends = dict(pairwise(offsets))
    writer = TarWriter(out, mtime)
    with open(upper_path, "rb") as source:
        for path, (member, _) in after.items():
            if path not in changed:
                continue
            end = ends.get(member.offset)
            if end is None:  # the last entry: up to the end of its data
                size = member.size if member.isreg() else 0
                end = member.offset_data + -(-size // 512) * 512
            source.seek(member.offset)
            out.write(source.read(end - member.offset))
    for path in sorted(before.keys() - after.keys()):
        if path.rpartition("/")[0] in after:  # else its parent's whiteout takes it along
            writer.whiteout(path.encode("utf-8", "surrogateescape"))
    writer.close()
