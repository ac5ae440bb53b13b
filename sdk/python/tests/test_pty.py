"""Terminals in a sandbox."""

import gc

from micabox import InvalidArgumentException, PtySize

from .support import SandboxTest


class PtyTest(SandboxTest):
    def test_a_terminal_has_its_size_and_takes_what_is_typed(self) -> None:
        handle = self.box.pty.create(PtySize(rows=30, cols=90), envs={"A": "b"})
        self.box.pty.resize(handle.pid, PtySize(rows=31, cols=91))
        self.box.pty.send_stdin(handle.pid, b'stty size; tty; echo "$TERM-$A"; exit 5\n')
        seen = b"".join(piece or b"" for _, _, piece in handle)
        self.assertIn(b"31 91\r\n", seen)
        self.assertIn(b"/dev/pts/", seen)
        self.assertIn(b"xterm-256color-b\r\n", seen)

    def test_a_terminal_is_connected_to_and_ends_with_ctrl_d(self) -> None:
        pid = self.box.pty.create(PtySize(24, 80), cmd=["cat"]).pid
        gc.collect()  # the handle, which has the stdin
        handle = self.box.pty.connect(pid)
        with self.assertRaisesRegex(InvalidArgumentException, "Ctrl-D"):
            handle.close_stdin()
        self.box.pty.resize(pid, PtySize(30, 90))
        self.box.pty.stream_input(pid, [b"typed\n", b"\x04"])
        self.assertEqual(handle.wait().exit_code, 0)

    def test_a_terminal_is_killed(self) -> None:
        handle = self.box.pty.create(PtySize(24, 80), timeout=None)
        self.assertTrue(self.box.pty.kill(handle.pid))
        list(handle)
        self.assertFalse(self.box.pty.kill(handle.pid))
