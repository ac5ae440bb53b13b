"""Packs the programs, the guest's files, the manual and completions for Debian and its relatives.

python3 scripts/pack/deb.py PROGRAMS GUEST DIRECTORY
"""

import email.utils
import gzip
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

import shipped

MAINTAINER = "Micabox developers <micabox@packages.invalid>"
CONTROL = """\
Package: micabox
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {kib}
Recommends: qemu-system-x86, uidmap
Section: admin
Priority: optional
Description: run untrusted code in a virtual machine of its own
 Runs commands from OCI images in virtual machines that start at once, on KVM
 or QEMU, without a daemon and without root. Images are kept as filesystems
 that all machines share; what a machine changes is gone when it ends, or kept
 on a disk of its own.
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Micabox

Files: *
Copyright: 2025-2026 Micabox developers
License: Apache-2.0

Files: usr/lib/micabox/vmlinux
Copyright: 1991-2026 Linus Torvalds and others
License: GPL-2.0-only WITH Linux-syscall-note
Comment: The sources of Debian's package {kernel}, with the configuration and
 the patches in /usr/share/doc/micabox/kernel.

License: Apache-2.0
 On Debian systems, it is in /usr/share/common-licenses/Apache-2.0.

License: GPL-2.0-only WITH Linux-syscall-note
 On Debian systems, the GPL is in /usr/share/common-licenses/GPL-2.
"""
CHANGES = """\
micabox ({version}) unstable; urgency=medium

  * /usr/share/doc/micabox/CHANGELOG.md.gz says what changed.

 -- {maintainer}  {date}
"""
# Static on purpose: the same bytes as in the other packages, on every release of Debian.
# The paths of dpkg's database are patterns of `mica run --trim`, for images.
OVERRIDES = """\
micabox: statically-linked-binary
micabox: shared-library-lacks-prerequisites
micabox: uses-dpkg-database-directly
"""


def main(programs: str, guest: str, out: str) -> None:
    """Writes the package and prints its path and size."""
    version = shipped.version()
    files = tree(programs, guest)
    size = sum(len(data) for data in files.values())
    values = {"version": version, "maintainer": MAINTAINER, "kib": -(-size // 1024)}
    path = pathlib.Path(out, f"micabox_{version}_amd64.deb")
    with tempfile.TemporaryDirectory() as work:
        root = pathlib.Path(work, "root")
        sums = [
            f"{hashlib.md5(data).hexdigest()}  {place}\n" for place, data in sorted(files.items())
        ]
        control = {
            "DEBIAN/control": CONTROL.format(**values).encode(),
            "DEBIAN/md5sums": "".join(sums).encode(),
        }
        for place, data in (files | control).items():
            file = root / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(shipped.mode(place))
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        # One thread: with several, the compressed bytes depend on their number.
        pack = ["dpkg-deb", "--root-owner-group", "-Zxz", "--threads-max=1", "--build", root, path]
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(shipped.time())}
        subprocess.run(pack, check=True, env=environment, stdout=subprocess.DEVNULL)
    print(path, path.stat().st_size)


def tree(programs: str, guest: str) -> shipped.Files:
    """All files, by place."""
    directory = pathlib.Path(programs)
    files = {f"usr/bin/{name}": data for name, data in shipped.programs(directory).items()}
    for name, data in shipped.guest(pathlib.Path(guest)).items():
        files[f"usr/lib/micabox/{name}"] = data
    with tempfile.TemporaryDirectory() as work:
        manual = shipped.manual(directory / "mica-manual", pathlib.Path(work))
    for place, data in manual.items():
        is_page = place.startswith("man/")
        files["usr/share/" + place + (".gz" if is_page else "")] = packed(data) if is_page else data
    document = "usr/share/doc/micabox/"
    notices = shipped.notices()
    for place in ("LICENSE", "NOTICE"):
        del notices[place]
    files |= {document + place: data for place, data in notices.items() if place != "CHANGELOG.md"}
    values = {"version": shipped.version(), "maintainer": MAINTAINER}
    date = email.utils.formatdate(shipped.time())
    return files | {
        document + "CHANGELOG.md.gz": packed(notices["CHANGELOG.md"]),
        document + "changelog.gz": packed(CHANGES.format(**values, date=date).encode()),
        document + "copyright": COPYRIGHT.format(kernel=shipped.kernel_source()).encode(),
        "usr/share/lintian/overrides/micabox": OVERRIDES.encode(),
    }


def packed(data: bytes) -> bytes:
    """A file as gzip(1) packs it, without a name and a time."""
    return gzip.compress(data, compresslevel=9, mtime=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
