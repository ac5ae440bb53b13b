#!/usr/bin/env bash
# Options of Docker's commands that scripts pass by habit: forced removals of what is not there, volumes that go
# with a sandbox, names with a slash before as `docker inspect` prints them, `-h` for the host name. Each is taken as
# Docker takes it, or refused with a reason; none does something else without a word. As root, for the host backend.
set -u
MICA=${MICA:-mica} BUSYBOX=${BUSYBOX:-/bin/busybox}
dir=$(mktemp -d)
export MICABOX_HOME=$dir/home
trap '"$MICA" ps -aq | xargs -r "$MICA" rm -f >/dev/null 2>&1; rm -rf "$dir"' EXIT
cd "$dir" || exit
mkdir -p root/bin
cp "$BUSYBOX" root/bin/busybox
for name in sh true sleep hostname; do ln -s busybox "root/bin/$name"; done
python3 - <<'END'
import hashlib, io, json, tarfile
def member(archive, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as archive:
    archive.add("root/bin", "bin")
layer = layer.getvalue()
config = {"os": "linux", "architecture": "amd64", "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"]},
          "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
with tarfile.open("image.tar", "w") as archive:
    member(archive, "layer.tar", layer)
    member(archive, "config.json", json.dumps(config).encode())
    items = [{"Config": "config.json", "RepoTags": ["box:1", "box:2"], "Layers": ["layer.tar"]}]
    member(archive, "manifest.json", json.dumps(items).encode())
END
"$MICA" load -q image.tar >/dev/null || exit 1

failed=0
say() { printf '%s %s\n' "$1" "$2"; [ "$1" = ok ] || failed=1; }
# The exit code, and a part of what is printed or said.
expect() { # CODE TEXT WORDS...
    local code=$1 text=$2 output status=0
    shift 2
    output=$("$MICA" "$@" 2>&1 </dev/null) || status=$?
    case "$status $output" in
        "$code "*"$text"*) say ok "mica $*" ;;
        *) say WRONG "mica $* (exit $status): $output" ;;
    esac
}
expect 0 'no such sandbox: `none`' rm -f none
expect 0 'no such sandbox: `none`' rm -fv none
expect 1 'no such sandbox: `none`' rm -v none
expect 0 'no image `none`' rmi -f none
expect 1 'no image `none`' rmi none
expect 0 'box:2: removed' image rm --force none box:2
expect 0 '' images --digests
expect 0 '' images -f dangling=False
expect 0 'elsewhere-7' run --rm -q --backend host -h elsewhere-7 box:1 hostname
expect 125 "value is required for '--hostname" run -h
expect 0 '' run -d -q --backend host --name one box:1 sleep 1000
expect 0 '' exec --privileged=false one true
expect 125 '`--privileged` is not supported' exec --privileged one true
expect 0 '/one' inspect -f '{{.Name}}' /one
expect 0 '' exec /one true
expect 1 'no field `.Bogus`' inspect -f '{{.Bogus}}' one
expect 0 'no' inspect -f '{{.HostConfig.RestartPolicy.Name}}' one
expect 0 'null 1' inspect --type image -f '{{json .Config.Entrypoint}} {{len .Config.Env}}' box:1
expect 0 '' cp -q "$dir/image.tar" one:/image.tar
expect 0 '/one' stop --timeout 0 /one
expect 0 '/one' rm -v /one
expect 125 '`--dns-opt` is not supported' run --dns-opt x box:1
expect 125 '`--net-alias` is not supported' run --net-alias x box:1
expect 0 'data' volume create --driver local data
expect 2 "invalid value 'nfs'" volume create --driver nfs data
exit "$failed"
