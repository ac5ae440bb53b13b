#!/bin/bash
# mica started with a strict umask (027 or 077: hardened servers, systemd's UMask=, cron). A machine of root's boots all
# the same, and with --backend host the umask is not the sandbox's: /etc/hosts and /etc/resolv.conf can be read by all. As root.
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

for mask in 022 027 077; do
    umask $mask
    out=$("$MICA" run --rm -q --backend host -u 1000 repro/box:1 sh -c 'umask; cat /etc/hosts /etc/resolv.conf >/dev/null && echo readable' 2>&1 | tr '\n' ' ')
    [ "$out" = '0022 readable ' ] && good "umask $mask, host" || wrong "umask $mask, host" "$out"
    out=$("$MICA" run --rm -q --backend host -w /new -u 1000 repro/box:1 sh -c 'ls >/dev/null && echo fine' 2>&1)
    [ "$out" = fine ] && good "umask $mask, host, a directory made for -w" || wrong "umask $mask, host, a directory made for -w" "$out"
    out=$("$MICA" run --rm -q --backend qemu -u 1000 repro/box:1 sh -c 'umask; cat /etc/hosts /etc/resolv.conf >/dev/null && echo readable' 2>&1 | tr '\n' ' ')
    [ "$out" = '0022 readable ' ] && good "umask $mask, qemu" || wrong "umask $mask, qemu" "$out"
done
exit $bad
