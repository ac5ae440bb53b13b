#!/bin/bash
# `docker load -i FILE`, `podman load --input FILE` and `docker load <FILE`, as scripts have them.
MICA=${MICA:-mica}
work=$(mktemp -d); export MICABOX_HOME=$work/home
trap 'rm -rf --one-file-system "$work"' EXIT
python3 - "$work/a.tar" <<'E'
import hashlib, io, json, sys, tarfile
layer = io.BytesIO()
tarfile.open(fileobj=layer, mode="w").close()
layer = layer.getvalue()
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
manifest = json.dumps([{"Config": "c.json", "RepoTags": ["repro/load:1"], "Layers": ["l.tar"]}]).encode()
with tarfile.open(sys.argv[1], "w") as tar:
    for name, data in (("c.json", config), ("l.tar", layer), ("manifest.json", manifest)):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
E
bad=0
try() { local what=$1; shift; if "$@" >"$work/out" 2>&1; then echo "ok    $what"; else echo "WRONG $what: $(head -1 "$work/out")"; bad=1; fi; }
try 'load FILE' "$MICA" load "$work/a.tar"
try 'load -i FILE' "$MICA" load -i "$work/a.tar"
try 'load --input FILE' "$MICA" load --input "$work/a.tar"
try 'load <FILE' sh -c '"$0" load <"$1"' "$MICA" "$work/a.tar"
exit $bad
