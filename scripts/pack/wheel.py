"""Packs the Python SDK as a wheel, with the programs and the guest's files inside.

    python3 scripts/pack/wheel.py MICA GUEST DIRECTORY
    python3 scripts/pack/wheel.py --metadata DIRECTORY     only what the package says of itself, for tests

The other programs are beside `mica`. The same files give the same bytes. The platform's tags say what C library
`mica` needs. One that is linked with glibc names the version that its symbols need (PEP 600). A static one needs
none, so that the oldest tags of both libraries that installers know are true of it.
"""

import base64
import hashlib
import lzma
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile

import shipped

PACKAGE = shipped.REPOSITORY / "sdk" / "python"
STATIC = ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"]


def main(mica: str, guest: str, out: str) -> None:
    """Writes the wheel and prints its path and size."""
    project = table("project")
    tags = platforms(mica)
    name = f"{project['name']}-{project['version']}"
    info = f"{name}.dist-info"
    beside = pathlib.Path(mica).parent
    members = sources() | {
        **{f"micabox/files/{name}": stripped(beside / name) for name in shipped.names()},
        **packed_guest(pathlib.Path(guest)),
        **described(info),
        f"{info}/WHEEL": wheel(tags).encode(),
        f"{info}/licenses/LICENSE": (shipped.REPOSITORY / "LICENSE").read_bytes(),
        f"{info}/licenses/NOTICE": shipped.notice().encode(),
    }
    members[f"{info}/RECORD"] = record(members, f"{info}/RECORD").encode()
    path = pathlib.Path(out) / f"{name}-py3-none-{'.'.join(tags)}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, members)
    print(path, path.stat().st_size)


def table(name: str) -> dict[str, str]:
    """What a table of pyproject.toml says, in one line each. Python 3.10 has no reader of TOML."""
    text = (PACKAGE / "pyproject.toml").read_text().split(f"[{name}]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^([a-z-]+) = \[?"(.*)"\]?$', text, re.MULTILINE))


def described(info: str) -> dict[str, bytes]:
    """What the package says of itself in the directory `info`: METADATA and entry points."""
    points = {"console_scripts": {"mica": "micabox.program:run"}}
    points["inspect_ai"] = table("project.entry-points.inspect_ai")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in point.items())
        for group, point in points.items()
    ]
    return {
        f"{info}/METADATA": metadata(table("project")).encode(),
        f"{info}/entry_points.txt": "\n".join(groups).encode(),
    }


def platforms(program: str) -> list[str]:
    """The platforms that a program runs on."""
    command = ["readelf", "--version-info", "--wide", program]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)
    if not needed:
        return STATIC
    major, minor = max((int(major), int(minor)) for major, minor in needed)
    return [f"manylinux_{major}_{minor}_x86_64"]


def stripped(program: pathlib.Path) -> bytes:
    """A program without symbols."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "-o", file.name, program], check=True)
        return pathlib.Path(file.name).read_bytes()


def sources() -> dict[str, bytes]:
    """The package's own files, by path."""
    paths = [*(PACKAGE / "micabox").rglob("*.py"), PACKAGE / "micabox" / "py.typed"]
    return {str(path.relative_to(PACKAGE)): path.read_bytes() for path in paths}


def packed_guest(guest: pathlib.Path) -> dict[str, bytes]:
    """The guest's files, compressed, and their digests."""
    members, sums = {}, ""
    for name, data in shipped.guest(guest).items():
        members[f"micabox/files/{name}.xz"] = lzma.compress(data, preset=6)
        sums += f"{hashlib.sha256(data).hexdigest()}  {name}\n"
    members["micabox/files/guest.sha256"] = sums.encode()
    return members


def metadata(project: dict[str, str]) -> str:
    """The wheel's METADATA."""
    fields: dict[str, str | list[str]] = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": project["version"],
        "Summary": project["description"],
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "License-File": ["LICENSE", "NOTICE"],
        "Description-Content-Type": "text/markdown",
    }
    lines = [
        f"{name}: {value}\n"
        for name, values in fields.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    head = "".join(lines)
    for extra, needed in table("project.optional-dependencies").items():
        head += f'Provides-Extra: {extra}\nRequires-Dist: {needed}; extra == "{extra}"\n'
    return head + "\n" + (PACKAGE / project["readme"]).read_text()


def wheel(tags: list[str]) -> str:
    """The wheel's WHEEL."""
    lines = ["Wheel-Version: 1.0", "Generator: micabox", "Root-Is-Purelib: false"]
    lines += [f"Tag: py3-none-{tag}" for tag in tags]
    return "\n".join(lines) + "\n"


def record(members: dict[str, bytes], itself: str) -> str:
    """The wheel's RECORD."""
    lines = []
    for path, data in sorted(members.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{itself},,\n"


def write(path: pathlib.Path, members: dict[str, bytes]) -> None:
    """Writes an archive."""
    date = time.gmtime(shipped.time())[:6]
    programs = [f"micabox/files/{name}" for name in shipped.names()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(members.items()):
            member = zipfile.ZipInfo(name, date)
            mode = 0o755 if name in programs else 0o644
            member.external_attr = (0o100000 | mode) << 16
            is_packed = name.endswith(".xz")
            member.compress_type = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
            archive.writestr(member, data, compresslevel=9)


def write_metadata(out: str) -> None:
    """Writes what an installed package says of itself."""
    project = table("project")
    for name, data in described(f"{project['name']}-{project['version']}.dist-info").items():
        path = pathlib.Path(out, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    if sys.argv[1] == "--metadata":
        write_metadata(sys.argv[2])
    else:
        main(*sys.argv[1:])
