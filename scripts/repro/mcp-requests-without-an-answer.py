#!/usr/bin/env python3
"""`mica mcp`: every request has an answer, or its client waits for ever. JSON may have a lone surrogate as an escape (RFC
8259; Python's json writes file names that are not UTF-8 so, JSON.stringify cut strings). Of a line that is no JSON or no UTF-8, or
too long, the answer is a parse error with the ID null (JSON-RPC 2.0, 5.1). Arguments that are no object are invalid parameters."""

import atexit
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading

MICA = os.environ.get("MICA", "mica")
WORK = tempfile.mkdtemp(prefix="mica-repro-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
ENV = dict(os.environ, MICABOX_HOME=os.path.join(WORK, "home"))
server = subprocess.Popen(
    [MICA, "mcp"],
    env=ENV,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    bufsize=0,
)
lines = queue.Queue()
threading.Thread(target=lambda: [lines.put(line) for line in server.stdout], daemon=True).start()
bad = 0


def ask(line, limit=4):
    """Sends a line and returns the first answer."""
    server.stdin.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    try:
        return json.loads(lines.get(timeout=limit))
    except queue.Empty:
        return None


def check(what, good, seen):
    global bad
    print(
        ("ok    " if good else "WRONG ")
        + what
        + ("" if good else ": " + (json.dumps(seen)[:200] if seen else "no answer"))
    )
    bad += not good


ask(
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "repro", "version": "1"},
        },
    },
    20,
)
server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
seen = ask(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "read_file", "arguments": {"sandbox": "none", "path": "/tmp/caf\udce9"}},
    }
)
check(
    "a call with a lone surrogate in an argument is answered",
    seen is not None and seen.get("id") == 1,
    seen,
)
seen = ask(
    {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "read_file", "arguments": "x"},
    }
)
check(
    "arguments that are no object are invalid parameters",
    seen is not None and seen.get("error", {}).get("code") == -32602,
    seen,
)
seen = ask(b'\xff\xfe{"jsonrpc":"2.0","id":3,"method":"ping"}\n')
check(
    "a line that is no UTF-8 is a parse error",
    seen is not None and seen.get("error", {}).get("code") == -32700,
    seen,
)
seen = ask(b"{not json\n")
check(
    "a line that is no JSON is a parse error",
    seen is not None and seen.get("error", {}).get("code") == -32700,
    seen,
)
seen = ask({"jsonrpc": "2.0", "id": 4, "method": "ping"}, 20)
check("the session goes on", seen is not None and seen.get("id") == 4, seen)
line = b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":"'
for piece in [line] + [b"a" * 1_000_000] * 40 + [b'"}}\n']:
    server.stdin.write(piece)
seen = ask({"jsonrpc": "2.0", "id": 6, "method": "ping"}, 30)
check(
    "a line of 40 MB is answered (an error, or the ping's result)",
    seen is not None and seen.get("id") != 6,
    seen and "no answer to it, only to the next",
)
server.stdin.close()
try:
    server.wait(20)
except subprocess.TimeoutExpired:
    server.kill()
sys.exit(1 if bad else 0)
