#!/bin/bash
# Values of `-v` and `--mount` that `docker run` takes: propagation (node_exporter's README has `-v "/:/host:ro,rslave"`), a
# volume without a name, /dev/null over a file (to mask it); and a quoted `~`, which does not become a folder of that name.
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

mkdir -p data
make -v "$work/data:/m:ro,rslave"
make -v "$work/data:/m:shared"
make -v "$work/data:/m:slave"
make -v /anonymous
make -v /dev/null:/etc/motd
make --mount type=volume,dst=/anonymous
make --mount "type=bind,src=$work/data,dst=/m,bind-recursive=disabled"
make --mount type=volume,src=v,dst=/v,volume-driver=local
# shellcheck disable=SC2088 # the tilde is the case
"$MICA" create --name tilde -v '~/data:/m' repro/box:1 true >/dev/null 2>&1
if [ -e '~' ]; then wrong "-v '~/data:/m'" 'made a folder called ~ here'; else good "-v '~/data:/m' makes no folder called ~"; fi
exit $bad
