"""Writes what a release consists of, as CycloneDX 1.6 has it.

    python3 scripts/pack/sbom.py DIRECTORY

Crates are those that cargo links into the programs and the agent, with the checksums of Cargo.lock. The SDKs have
no parts of others.
"""

import json
import pathlib
import re
import subprocess
import sys
import time
import uuid
from typing import Any

import shipped

TARGETS = {
    "micabox-cli": "x86_64-unknown-linux-musl",
    "micabox-server": "x86_64-unknown-linux-musl",
    "micabox-guest": "x86_64-unknown-linux-gnu",
}


def main(out: str) -> None:
    """Writes the file and prints its path and size."""
    version = shipped.version()
    path = pathlib.Path(out, f"micabox-{version}.cdx.json")
    parts = components()
    names = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{names}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shipped.time())),
            "component": {
                "type": "application",
                "bom-ref": "micabox",
                "name": "micabox",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": "micabox", "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(path, path.stat().st_size)


def components() -> list[dict[str, Any]]:
    """All parts, in the order of their names."""
    found = [*crates(), kernel(), *toolchain(), *sdks()]
    return sorted(found, key=lambda part: part["bom-ref"])


def crates() -> list[dict[str, Any]]:
    """The crates in the programs."""
    sums = checksums()
    lines: set[str] = set()
    for package, target in TARGETS.items():
        command = ["cargo", "tree", "--locked", "--package", package, "--target", target]
        command += ["--edges", "normal", "--prefix", "none", "--format", "{p}|{l}"]
        text = subprocess.check_output(command, cwd=shipped.REPOSITORY, text=True)
        lines.update(line.removesuffix(" (*)") for line in text.splitlines() if line)
    found = {}
    for line in lines:
        described, _, licence = line.partition("|")
        name, version = described.split()[:2]
        version = version.removeprefix("v")
        part = component("library", f"pkg:cargo/{name}@{version}", name, version)
        # As crates wrote it before SPDX had expressions.
        part["licenses"] = [{"expression": licence.replace("/", " OR ")}]
        if checksum := sums.get((name, version)):
            part["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        found[part["bom-ref"]] = part
    return list(found.values())


def checksums() -> dict[tuple[str, str], str]:
    """The checksums of Cargo.lock, by crate and version."""
    text = (shipped.REPOSITORY / "Cargo.lock").read_text()
    pattern = r'^name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"$'
    found = re.findall(pattern, text, re.MULTILINE)
    return {(name, version): checksum for name, version, checksum in found}


def kernel() -> dict[str, Any]:
    """The guest's kernel."""
    name, version = shipped.kernel_source().split()
    part = component("operating-system", f"pkg:deb/debian/{name}@{version}", name, version)
    part["licenses"] = [{"expression": "GPL-2.0-only WITH Linux-syscall-note"}]
    patches = sorted((shipped.REPOSITORY / "kernel" / "patches").glob("*.patch"))
    part["pedigree"] = {
        "patches": [
            {"type": "unofficial", "diff": {"text": {"content": patch.read_text()}}}
            for patch in patches
        ],
    }
    return part


def toolchain() -> list[dict[str, Any]]:
    """What the compiler links in: its standard library, and the C libraries below that."""
    said = subprocess.check_output(["rustc", "--version"], text=True).split()
    glibc = subprocess.check_output(["ldd", "--version"], text=True).splitlines()[0].split()[-1]
    std = component("library", f"pkg:generic/rust-std@{said[1]}", "rust-std", said[1])
    std["licenses"] = [{"expression": "MIT OR Apache-2.0"}]
    musl = {"type": "library", "bom-ref": "musl", "name": "musl"}
    musl |= {"licenses": [{"expression": "MIT"}], "description": f"as rust-std {said[1]} has it"}
    agents = component("library", f"pkg:generic/glibc@{glibc}", "glibc", glibc)
    agents |= {"licenses": [{"expression": "LGPL-2.1-or-later"}], "description": "in mica-guest"}
    return [std, musl, agents]


def sdks() -> list[dict[str, Any]]:
    """The packages of other languages."""
    version = shipped.version()
    names = ["pypi/micabox", "npm/micabox", "npm/%40micabox/linux-x64"]
    return [
        component("library", f"pkg:{name}@{version}", name.partition("/")[2], version)
        | {"licenses": [{"expression": "Apache-2.0"}]}
        for name in names
    ]


def component(kind: str, purl: str, name: str, version: str) -> dict[str, Any]:
    """A part."""
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main(*sys.argv[1:])
