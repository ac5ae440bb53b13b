#!/bin/bash
# An attached `mica run` passes signals on, as `docker run` does: HUP, WINCH, and real-time signals.
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

# Waits for something, and for as long as only a hang takes.
until_() {
    local end=$((SECONDS + 300))
    until "$@"; do
        ((SECONDS < end)) || return 1
        # Sleep: the interval between questions.
        sleep 0.1
    done
}
is_gone() { ! kill -0 "$1" 2>/dev/null; }

for signal in TERM USR2 HUP WINCH RTMIN+2; do
    number=$(kill -l ${signal%+2}); [ $signal = RTMIN+2 ] && number=36
    rm -f out # the one before was ready, too
    "$MICA" run --rm -q --backend "$BACKEND" repro/box:1 sh -c "trap 'echo got; exit 7' $number; trap 'echo other; exit 8' TERM; [ $number = 15 ] && trap 'echo got; exit 7' 15; echo ready; while :; do sleep 0.1; done" >out 2>/dev/null &
    pid=$!
    until_ grep -qs ready out
    kill -s $signal $pid
    if ! until_ is_gone $pid; then kill -KILL $pid; wait $pid 2>/dev/null; wrong $signal 'not passed on'; continue; fi
    wait $pid 2>/dev/null; code=$?
    grep -q got out && good $signal || wrong $signal "exit $code, the command saw: $(tail -1 out)"
done
exit $bad
