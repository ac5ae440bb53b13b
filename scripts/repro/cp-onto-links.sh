#!/bin/bash
# `mica cp FILE BOX:LINK` where LINK is a symbolic link writes what it leads to, as Docker and Podman do. Paths of a
# sandbox without the first slash are taken, and a gzipped archive on stdin is unpacked.
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

"$MICA" run -d -q --backend "$BACKEND" --name box --idle repro/box:1 >/dev/null || exit 2
trap '"$MICA" rm -f box >/dev/null 2>&1; cd /; rm -rf --one-file-system "$work"' EXIT
"$MICA" exec box sh -c 'echo old >/c/file; ln -s file /c/link; ln -s /c/later /c/dangling; mkdir /c/dir'
echo new >new
"$MICA" cp new box:/c/link
got=$("$MICA" exec box sh -c 'readlink /c/link; cat /c/file')
[ "$got" = $'file\nnew' ] && good 'onto a link' || wrong 'onto a link' "link leads to, file has: $got"
"$MICA" cp new box:/c/dangling
got=$("$MICA" exec box sh -c 'readlink /c/dangling; cat /c/later' 2>&1)
[ "$got" = $'/c/later\nnew' ] && good 'onto a link that leads nowhere yet' || wrong 'onto a link that leads nowhere yet' "$got"
out=$("$MICA" cp new box:c/relative 2>&1) && good 'BOX:relative/path' || wrong 'BOX:relative/path' "$(echo "$out" | head -1)"
tar -czf new.tgz new
out=$("$MICA" cp - box:/c/dir <new.tgz 2>&1) && good 'a gzipped archive' || wrong 'a gzipped archive' "$out"
exit $bad
