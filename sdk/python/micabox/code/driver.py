"""Runs in the sandbox: a Python that takes code on stdin, and keeps its state.

Requests and replies are a length as a `u32`, little endian, and JSON, on the stdin and stdout that it was
started with. What code writes to the file descriptors 1 and 2, and what its children write, comes in
replies as well. For every Python from 3.7, whatever the host has.
"""

import ast
import base64
import codecs
import json
import linecache
import os
import secrets
import select
import signal
import struct
import sys
import threading
import traceback
import types

FORMATS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "latex": "_repr_latex_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
}
PIECE = 1 << 16


class Replies:
    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.Lock()
        self.request = 0

    def send(self, kind, **fields):
        body = json.dumps({"type": kind, "request": self.request, **fields}).encode()
        data = struct.pack("<I", len(body)) + body
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]


class Outputs:
    """Takes the place of the file descriptors 1 and 2."""

    def __init__(self, replies):
        self.replies = replies
        # No code guesses it. Its write is atomic: it is shorter than PIPE_BUF.
        self.mark = b"\0" + secrets.token_hex(16).encode() + b"\0"
        self.flushed = threading.Semaphore(0)
        self.pipes = {}
        # Marks go through these: code may have closed or redirected 1 and 2. No program inherits them.
        self.writers = []
        for fd, name in ((1, "stdout"), (2, "stderr")):
            reader, writer = os.pipe()
            os.dup2(writer, fd)
            self.writers.append(writer)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self.pipes[reader] = [name, decoder, b""]
        threading.Thread(target=self.pass_on, daemon=True).start()

    def pass_on(self):
        try:
            self.pass_all()
        finally:
            os._exit(1)  # or `flush` would wait for ever

    def pass_all(self):
        while True:
            for reader in select.select(list(self.pipes), [], [])[0]:
                pipe = self.pipes[reader]
                name, decoder, left = pipe
                *done, left = (left + os.read(reader, PIECE)).split(self.mark)
                for piece in done:
                    self.tell(name, decoder.decode(piece, True))
                    decoder.reset()
                    self.flushed.release()
                # The mark may have come in part.
                begun = left.rfind(b"\0")
                keep = len(left) if begun < 0 or not self.mark.startswith(left[begun:]) else begun
                self.tell(name, decoder.decode(left[:keep]))
                pipe[2] = left[keep:]

    def tell(self, name, text):
        if text:
            self.replies.send(name, text=text)

    def flush(self):
        """Returns when all that was written so far has been sent."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass  # the code has closed it
        for writer in self.writers:
            os.write(writer, self.mark)
            self.flushed.acquire()


class Interpreter:
    def __init__(self, replies):
        self.replies = replies
        self.module = types.ModuleType("__main__")
        self.module.__builtins__ = __builtins__
        sys.modules["__main__"] = self.module
        self.count = 0
        self.loop = None
        self.is_running = False
        signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, *_):
        # Once for each request: clients repeat it, since one that comes before the code is dropped.
        if self.is_running:
            self.is_running = False
            raise KeyboardInterrupt

    def value(self, code):
        value = eval(code, self.module.__dict__)
        if not code.co_flags & 0x80:  # inspect.CO_COROUTINE: it has `await` outside of functions
            return value
        if self.loop is None:
            import asyncio

            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def run(self, source, variables):
        self.count += 1
        name = "<cell %d>" % self.count
        flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
        before = {}
        try:
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            if sys.stdin.closed:  # `exit` does that
                sys.stdin = open(os.devnull)
            for key, value in variables.items():
                before[key] = os.environ.get(key)
                os.environ[key] = value
            try:
                self.is_running = True
                shown = self.shown(source, name, flags)
            finally:
                # What is sent is not interrupted.
                self.is_running = False
        except BaseException as error:
            self.replies.send("error", **described(error))
        else:
            if shown:
                self.replies.send("result", **shown)
        for key, value in before.items():
            restore(key, value)

    def shown(self, source, name, flags):
        """Runs code; returns its last expression's value in its formats."""
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = compile(tree, name, "exec", flags)
        if last:
            last = compile(ast.Expression(last.value), name, "eval", flags)
        self.value(body)
        value = self.value(last) if last else None
        if value is None:
            return None
        self.module.__dict__["_"] = value
        return formats(value)


def restore(key, value):
    try:
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    except Exception:
        pass  # one that no environment can have, or the code has put something else there


def formats(value):
    found = {"text": repr(value)}
    for name, method in FORMATS.items():
        try:
            shown = getattr(value, method)()
        except Exception:
            continue
        if isinstance(shown, bytes):
            shown = base64.b64encode(shown).decode()
        if isinstance(shown, str):
            found[name] = shown
    return found


def described(error):
    trace = error.__traceback__
    while trace and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    try:
        value = str(error)
    except BaseException as worse:
        value = "its text raises %s" % type(worse).__name__
    lines = traceback.format_exception(type(error), error, trace)
    return {"name": type(error).__name__, "value": value, "traceback": "".join(lines)}


def main():
    requests = os.fdopen(os.dup(0), "rb")
    replies = Replies(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    outputs = Outputs(replies)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.path.insert(0, "")
    interpreter = Interpreter(replies)
    pid = os.getpid()
    replies.send("ready", version=sys.version)
    while True:
        head = requests.read(4)
        if len(head) < 4:
            return
        request = json.loads(requests.read(struct.unpack("<I", head)[0]))
        replies.request = request["request"]
        interpreter.run(request["code"], request["envs"])
        if os.getpid() != pid:
            os._exit(0)  # a child that the code has forked, and that came to its end
        outputs.flush()
        replies.send("end", count=interpreter.count)


main()
