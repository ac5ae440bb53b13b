"""A tar writer that gives the sample image exact control over its bytes.

Python's tarfile re-encodes names and cannot write sparse files, so the few
header fields are written here: ustar, with PAX records where ustar has no room
(POSIX.1-2017 pax, "ustar Interchange Format" and "pax Extended Header").
"""

BLOCK = 512

FILE, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"


def _padding(size):
    return b"\0" * (-size % BLOCK)


def _octal(value, width):
    """A NUL-terminated octal field; PAX carries what does not fit."""
    text = b"%0*o" % (width - 1, value)
    return text + b"\0" if len(text) < width else b"0" * (width - 1) + b"\0"


def pax_record(key, value):
    """One "length key=value\\n" record, whose length counts its own digits."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


class TarWriter:
    """Writes entries to a binary file object, with one default mtime."""

    def __init__(self, out, mtime):
        self.out = out
        self.mtime = mtime

    def close(self):
        """Ends the archive: two zero blocks."""
        self.out.write(b"\0" * (2 * BLOCK))

    def directory(self, name, mode=0o755, **metadata):
        self._entry(DIRECTORY, name.rstrip(b"/") + b"/", mode=mode, **metadata)

    def file(self, name, data, mode=0o644, **metadata):
        self._entry(FILE, name, mode=mode, data=data, **metadata)

    def symlink(self, name, target, **metadata):
        self._entry(SYMLINK, name, mode=0o777, target=target, **metadata)

    def hard_link(self, name, target, mode=0o644, **metadata):
        self._entry(LINK, name, mode=mode, target=target, **metadata)

    def fifo(self, name, mode=0o644, **metadata):
        self._entry(FIFO, name, mode=mode, **metadata)

    def device(self, name, major, minor, block=False, mode=0o644, **metadata):
        kind = BLOCK_DEVICE if block else CHAR
        self._entry(kind, name, mode=mode, device=(major, minor), **metadata)

    def whiteout(self, name):
        """Says that `name` of the layers below is gone (OCI image-spec, layer.md)."""
        parent, _, base = name.rpartition(b"/")
        self.file((parent + b"/" if parent else b"") + b".wh." + base, b"", mode=0)

    def opaque(self, directory):
        """Says that nothing below `directory` of the layers below is seen."""
        self.file(directory + b"/.wh..wh..opq", b"", mode=0)

    def sparse(self, name, size, segments, mode=0o644, **metadata):
        """A file with holes, as GNU tar stores it (PAX sparse format 1.0).

        `segments` are (offset, bytes) pairs, ascending, block aligned.
        """
        numbers = [len(segments) + 1]
        for offset, data in segments:
            numbers += [offset, len(data)]
        numbers += [size, 0]  # where the last hole ends
        table = b"".join(b"%d\n" % number for number in numbers)
        body = table + _padding(len(table)) + b"".join(data for _, data in segments)
        parent, _, base = name.rpartition(b"/")
        records = [
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", name),
            (b"GNU.sparse.realsize", b"%d" % size),
        ]
        stand_in = parent + b"/GNUSparseFile.0/" + base
        self._entry(FILE, stand_in, mode=mode, data=body, records=records, **metadata)

    def _entry(
        self,
        kind,
        name,
        *,
        mode,
        uid=0,
        gid=0,
        mtime=None,
        data=b"",
        target=b"",
        device=(0, 0),
        xattrs=None,
        records=(),
    ):
        mtime = self.mtime if mtime is None else mtime
        records = list(records)
        if len(name) > 100:
            records.append((b"path", name))
        if len(target) > 100:
            records.append((b"linkpath", target))
        if isinstance(mtime, str) or mtime < 0:  # fractions and the time before 1970
            records.append((b"mtime", str(mtime).encode()))
            mtime = max(0, int(float(mtime)))
        for key, value in sorted((xattrs or {}).items()):
            records.append((b"SCHILY.xattr." + key.encode(), value))
        if records:
            body = b"".join(pax_record(key, value) for key, value in records)
            stand_in = b"PaxHeaders/" + name[-80:].strip(b"/")
            self._header(b"x", stand_in, 0o644, 0, 0, len(body), self.mtime)
            self.out.write(body + _padding(len(body)))
        self._header(kind, name[:100], mode, uid, gid, len(data), mtime, target[:100], device)
        self.out.write(data + _padding(len(data)))

    def _header(
        self, kind, name, mode, uid, gid, size, mtime, target=b"", device=(0, 0)
    ):  # the fields of a ustar header, in its order
        fields = [
            name.ljust(100, b"\0"),
            _octal(mode, 8),
            _octal(uid, 8),
            _octal(gid, 8),
            _octal(size, 12),
            _octal(mtime, 12),
            b" " * 8,  # the checksum counts itself as spaces
            kind,
            target.ljust(100, b"\0"),
            b"ustar\0" + b"00",
            b"\0" * 64,  # no user and group names: numbers decide
            _octal(device[0], 8),
            _octal(device[1], 8),
        ]
        header = b"".join(fields).ljust(BLOCK, b"\0")
        checksum = b"%06o\0 " % sum(header)
        self.out.write(header[:148] + checksum + header[156:])
