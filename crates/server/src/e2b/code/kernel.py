"""Runs in the sandbox: passes code on to IPython's kernel, with the requests and replies of driver.py.

The text of driver.py is the argument: it is run where there is no kernel. For every Python from 3.7.
"""

import json
import os
import queue
import signal
import struct
import sys
import tempfile

FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


# Variables that one execution has. What was there before is kept in a module that code does not meet.
SET = """
def _micabox(os, kept, given):
    kept.micabox_environment = {{name: os.environ.get(name) for name in given}}
    os.environ.update(given)
_micabox(__import__("os"), __import__("posix"), {!r})
del _micabox
"""
UNSET = """
def _micabox(os, kept):
    for name, value in kept.micabox_environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
_micabox(__import__("os"), __import__("posix"))
del _micabox
"""

# Has results of pandas, and charts of matplotlib if E2B's package for them is there, in forms that programs can read.
# By `isinstance`: IPython forgets what is registered for a figure when matplotlib is imported.
FORMS = """
def _micabox():
    import json
    import sys
    from IPython.core.formatters import BaseFormatter

    display = get_ipython().display_formatter

    def add(kind, module, name, shown):
        class Form(BaseFormatter):
            format_type = "e2b/" + kind
            print_method = "_repr_e2b_" + kind + "_"
            _return_type = dict

            def __call__(self, value):
                known = getattr(sys.modules.get(module), name, None)
                if known is None or not isinstance(value, known):
                    return super().__call__(value)
                try:
                    return shown(value)
                except Exception:
                    return None  # one that has no such form

        display.formatters["e2b/" + kind] = Form(parent=display)

    def plain(value):
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if value - value == 0 else None
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    def data(frame):
        if frame.size > 100_000:
            return None
        found = frame.to_dict(orient="list")
        return {str(name): [plain(value) for value in values] for name, values in found.items()}

    def chart(figure):
        from e2b_charts import chart_figure_to_dict

        found = chart_figure_to_dict(figure)
        return found if found and len(json.dumps(found, default=str)) <= 4 << 20 else None

    add("data", "pandas", "DataFrame", data)
    add("chart", "matplotlib.figure", "Figure", chart)
_micabox()
del _micabox
"""


def shown(content):
    found, extra = {}, {}
    for kind, value in content["data"].items():
        if kind in FORMATS:
            found[FORMATS[kind]] = value
        else:
            extra[kind] = value
    if extra:
        found["extra"] = extra
    return found


class Kernel:
    def __init__(self, manager, replies):
        self.manager = manager
        self.replies = replies
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.client.execute(FORMS, silent=True)
        self.request = 0

    def send(self, kind, **fields):
        body = json.dumps({"type": kind, "request": self.request, **fields}).encode()
        self.replies.write(struct.pack("<I", len(body)) + body)
        self.replies.flush()

    def run(self, request):
        self.request = request["request"]
        if request["envs"]:
            self.client.execute(SET.format(request["envs"]), silent=True)
        asked = self.client.execute(request["code"], allow_stdin=False)
        try:
            self.pass_on(asked)
        finally:
            # Not before: a request that waits is dropped when the one before it fails.
            if request["envs"]:
                self.client.execute(UNSET, silent=True)

    def pass_on(self, asked):
        count = None
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if self.manager.is_alive():
                    continue
                raise RuntimeError("the kernel has ended") from None
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                self.send(content["name"], text=content["text"])
            elif kind == "execute_input":
                count = content["execution_count"]
            elif kind == "execute_result":
                self.send("result", **shown(content))
            elif kind == "display_data":
                self.send("result", display=True, **shown(content))
            elif kind == "error":
                trace = "\n".join(content["traceback"])
                self.send("error", name=content["ename"], value=content["evalue"], traceback=trace)
            elif kind == "status" and content["execution_state"] == "idle":
                self.send("end", count=count)
                return


def main(manager):
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    manager.start_kernel(stdout=nothing, stderr=nothing)
    try:
        kernel = Kernel(manager, replies)
        signal.signal(signal.SIGINT, lambda *_: manager.interrupt_kernel())
        kernel.send("ready", version=sys.version)
        while True:
            head = requests.read(4)
            if len(head) < 4:
                return
            kernel.run(json.loads(requests.read(struct.unpack("<I", head)[0])))
    finally:
        manager.shutdown_kernel(now=True)


try:
    import ipykernel  # noqa: F401
    from jupyter_client import KernelManager
except ImportError:
    driver = sys.argv.pop(1)
    exec(compile(driver, "<driver>", "exec"))  # noqa: S102 - it is driver.py
else:
    # Sockets of Unix, so that no network is needed, where every user may make them.
    place = tempfile.mkdtemp(prefix="kernel-")
    os.environ.setdefault("JUPYTER_RUNTIME_DIR", place)
    main(KernelManager(transport="ipc", ip=os.path.join(place, "socket")))
