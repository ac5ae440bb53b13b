#!/bin/bash
# The forms of `-p` that Docker and Podman have: a port alone, an address and an empty port, ranges, an IPv6 address, an
# upper-case protocol.
MICA=${MICA:-mica} BACKEND=${BACKEND:-host} BUSYBOX=${BUSYBOX:-/bin/busybox}
work=$(mktemp -d); export MICABOX_HOME=$work/home; cd "$work" || exit 2
trap 'cd /; rm -rf --one-file-system "$work"' EXIT
python3 - "$work/a.tar" "$BUSYBOX" <<'E'
import hashlib, io, json, sys, tarfile
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as tar:
    for name, mode in (("bin", 0o755), ("tmp", 0o1777), ("c", 0o755)):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)
    tar.add(sys.argv[2], "bin/busybox")
    for name in "sh cat echo sleep ls readlink true mkdir ln df stat kill trap env mount grep".split():
        entry = tarfile.TarInfo("bin/" + name)
        entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(entry)
layer = layer.getvalue()
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["sh"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
manifest = json.dumps([{"Config": "c.json", "RepoTags": ["repro/box:1"], "Layers": ["l.tar"]}]).encode()
with tarfile.open(sys.argv[1], "w") as tar:
    for name, data in (("c.json", config), ("l.tar", layer), ("manifest.json", manifest)):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
E
"$MICA" load a.tar >/dev/null || exit 2
bad=0
good() { echo "ok    $1"; }
wrong() { echo "WRONG $1: $2"; bad=1; }
# Makes a sandbox without starting it: only the flags are tried.
make() {
    local name="r$RANDOM" out
    if out=$("$MICA" create --name $name "$@" repro/box:1 true 2>&1); then
        good "$*"; "$MICA" rm -f $name >/dev/null 2>&1
    else
        wrong "$*" "$(echo "$out" | head -1 | cut -c1-140)"
    fi
}

make -p 18080:80
make -p 80
make -p 127.0.0.1::80
make -p 18080-18082:80-82
make -p 80-82
make -p '[::1]:18080:80'
make -p 18053:53/UDP
exit $bad
