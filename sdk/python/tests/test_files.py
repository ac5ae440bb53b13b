"""A sandbox's files."""

import array
import errno
import io
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from micabox import (
    FileException,
    FileNotFoundException,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    PermissionException,
    SandboxException,
    WriteEntry,
)

from .support import SandboxTest

BIG = bytes(range(256)) * 40_000


class FilesTest(SandboxTest):
    def test_what_is_written_is_read(self) -> None:
        written = self.box.files.write("/data/deep/a.txt", "hällo\n")
        self.assertEqual((written.name, written.path), ("a.txt", "/data/deep/a.txt"))
        self.assertEqual(self.box.files.read("/data/deep/a.txt"), "hällo\n")
        self.assertEqual(self.box.commands.run("cat /data/deep/a.txt").stdout, "hällo\n")
        self.box.files.write("/data/deep/a.txt", "x")
        self.assertEqual(self.box.files.read("/data/deep/a.txt", "bytes"), b"x")

    def test_data_may_be_bytes_files_and_iterables(self) -> None:
        pieces = (BIG[start : start + 100_001] for start in range(0, len(BIG), 100_001))
        for data in (BIG, io.BytesIO(BIG), pieces):
            self.box.files.write("big", data)
            self.assertEqual(self.box.files.read("/big", format="bytes"), BIG)
        self.box.files.write("/text", io.StringIO("täxt"))
        self.assertEqual(self.box.files.read("/text"), "täxt")
        self.box.files.write("/empty", b"")
        self.assertEqual(self.box.files.read("/empty"), "")

    def test_a_stream_is_read_as_it_is_consumed(self) -> None:
        self.box.files.write("/stream", BIG)
        with self.box.files.read("/stream", "stream") as stream:
            self.assertEqual(b"".join(stream), BIG)
        with self.box.files.read("/dev/zero", "stream") as endless:
            self.assertEqual(set(next(endless)), {0})

    def test_several_files_are_written(self) -> None:
        files = self.box.files.write_files(
            [{"path": "/several/a", "data": "1"}, {"path": "/several/b", "data": b"2"}]
        )
        self.assertEqual([file.path for file in files], ["/several/a", "/several/b"])
        self.assertEqual([file.name for file in self.box.files.list("/several")], ["a", "b"])

    def test_many_files_are_written_in_one_call(self) -> None:
        many: list[WriteEntry] = [
            {"path": f"/many/{n % 10}/{n}", "data": f"{n}\n"} for n in range(10_000)
        ]
        written = self.box.files.write_files(many)
        self.assertEqual([one.path for one in written], [one["path"] for one in many])
        said = self.box.commands.run("cat /many/*/* | sort -n | md5sum; seq 0 9999 | md5sum").stdout
        self.assertEqual(len(set(said.split("\n")[:-1])), 1)
        self.assertEqual(self.box.files.write_files([]), [])
        # Its pieces, in turn, with the file's mode as it was.
        self.box.commands.run("echo old >/kept; chmod 750 /kept; ln -s kept /link")
        pieces = [BIG, b"", BIG]
        self.box.files.write_files(
            [{"path": "/link", "data": iter(pieces)}, {"path": "/b", "data": ""}]
        )
        self.assertEqual(self.box.files.read("/kept", "bytes"), BIG + BIG)
        self.assertEqual(self.box.commands.run("stat -c %a /kept; test -L /link").stdout, "750\n")

    def test_the_first_of_many_files_that_fails_is_named(self) -> None:
        files = [("/one", "1"), ("/one/below", "2"), ("/three", "3")]
        with self.assertRaises(FileException) as raised:
            self.box.files.write_files([{"path": path, "data": data} for path, data in files])
        self.assertIn("/one/below", str(raised.exception))
        self.assertEqual(self.box.files.read("/one"), "1")
        self.assertFalse(self.box.files.exists("/three"))
        # What can't be read of the caller's leaves what comes before it.
        wrong: Any = [{"path": "/four", "data": "4"}, {"path": "/five", "data": 5}]
        with self.assertRaises(InvalidArgumentException):
            self.box.files.write_files(wrong)
        self.assertEqual(self.box.files.read("/four"), "4")
        self.assertFalse(self.box.files.exists("/five"))

    def test_a_list_has_what_is_below_a_directory(self) -> None:
        self.box.commands.run("mkdir -p /list/a/b; ln -s a /list/link; echo 12345 >/list/a/b/c")
        self.box.commands.run(["touch", b"/list/\xff".decode(errors="surrogateescape")])
        names = {entry.path: entry for entry in self.box.files.list("/list", depth=3)}
        odd = os.fsdecode(b"/list/\xff")
        self.assertEqual(set(names), {"/list/a", "/list/a/b", "/list/a/b/c", "/list/link", odd})
        self.assertEqual(names["/list/a/b/c"].size, 6)
        self.assertEqual(names["/list/link"].symlink_target, "a")
        self.assertEqual(len(self.box.files.list("/list")), 3)
        self.assertTrue(self.box.files.exists(odd))

    def test_a_file_is_described_as_the_system_does(self) -> None:
        begun = time.time()
        self.box.commands.run("echo 123 >/info; chown 5:6 /info; chmod 4751 /info; mkfifo /fifo")
        info = self.box.files.get_info("/info")
        self.assertEqual((info.type, info.size, info.name), (FileType.FILE, 4, "info"))
        self.assertEqual((info.mode, info.permissions), (0o4751, "-rwsr-x--x"))
        self.assertEqual((info.uid, info.gid, info.symlink_target), (5, 6, None))
        self.assertAlmostEqual(info.modified_time.timestamp(), begun, delta=60)
        self.assertEqual(self.box.files.get_info("/fifo").type, FileType.FIFO)
        self.assertEqual(self.box.files.get_info("/").type, FileType.DIR)
        self.box.commands.run("ln -s /nowhere /dangling")
        link = self.box.files.get_info("/dangling")
        self.assertEqual((link.type, link.symlink_target), (FileType.SYMLINK, "/nowhere"))
        self.assertTrue(self.box.files.exists("/dangling"))
        self.assertFalse(self.box.files.exists("/info/below"))

    def test_directories_are_made_and_removed_with_all_in_them(self) -> None:
        self.assertTrue(self.box.files.make_dir("/dir/below"))
        self.assertFalse(self.box.files.make_dir("/dir/below"))
        self.assertTrue(self.box.files.make_dir("/dir/other"))
        self.box.files.write("/dir/file", "")
        with self.assertRaises(FileException):
            self.box.files.make_dir("/dir/file")
        self.box.files.remove("/dir")
        self.assertFalse(self.box.files.exists("/dir"))

    def test_a_rename_replaces_what_is_there(self) -> None:
        self.box.files.write("/old", "1")
        self.box.files.write("/new", "2")
        self.assertEqual(self.box.files.rename("/old", "/new").path, "/new")
        self.assertEqual(self.box.files.read("/new"), "1")
        self.assertFalse(self.box.files.exists("/old"))

    def test_a_rename_makes_the_directories_that_are_missing(self) -> None:
        self.box.files.write("/old", "1")
        self.assertEqual(self.box.files.rename("/old", "/far/below/new").path, "/far/below/new")
        with self.assertRaises(FileNotFoundException):
            self.box.files.rename("/nonesuch", "/nowhere/new")
        self.assertFalse(self.box.files.exists("/nowhere"))

    def test_what_fails_says_why(self) -> None:
        for attempt in (self.box.files.read, self.box.files.remove, self.box.files.list):
            with self.assertRaises(FileNotFoundException) as missing:
                attempt("/nonesuch")
            self.assertIsInstance(missing.exception, NotFoundException)
            self.assertIn("/nonesuch", str(missing.exception))
        with self.assertRaises(FileException) as raised:
            self.box.files.write("/tmp", "")
        self.assertEqual(raised.exception.errno, errno.EISDIR)
        self.box.commands.run("mkdir -m 700 /private")
        with self.assertRaises(PermissionException):
            self.box.files.write("/private/x", "", user="strata")
        with self.assertRaises(NotEnoughSpaceException):
            self.box.files.write("/dev/full", BIG)
        with self.assertRaises(InvalidArgumentException):
            self.box.files.read("/a\0b")

    def test_data_that_can_not_be_written_leaves_the_file_as_it_is(self) -> None:
        def fails() -> Iterator[bytes]:
            raise KeyError("before the first piece")
            yield b""

        wrong: list[Any] = [5, None, {"a": "b"}, [5], "\udcff", io.StringIO("\udcff"), object()]
        self.box.files.write("/precious", "kept")
        for data in wrong:
            with self.subTest(repr(data)), self.assertRaises(InvalidArgumentException):
                self.box.files.write("/precious", data)
        with self.assertRaises(KeyError):
            self.box.files.write("/precious", fails())
        self.assertEqual(self.box.files.read("/precious"), "kept")

    def test_data_may_be_memory_of_any_shape(self) -> None:
        numbers = array.array("I", range(100_000))
        for view in (memoryview(numbers), memoryview(b"abcd")[::2], bytearray(b"ab")):
            data: Any = view
            self.box.files.write("/shape", data)
            self.assertEqual(self.box.files.read("/shape", "bytes"), bytes(view))

    def test_text_that_is_not_utf_8_is_read(self) -> None:
        self.box.files.write("/odd", b"a\xffb")
        self.assertEqual(self.box.files.read("/odd"), "a\ufffdb")

    def test_an_empty_path_is_not_the_working_directory(self) -> None:
        files = self.box.files
        calls: tuple[Callable[[], object], ...] = (
            lambda: files.remove(""),
            lambda: files.list(""),
            lambda: files.exists(""),
            lambda: files.rename("/tmp", ""),
        )
        for call in calls:
            with self.assertRaises(InvalidArgumentException):
                call()

    def test_times_beyond_those_of_datetime_are_the_last_one(self) -> None:
        self.box.commands.run("mkdir /old; touch -d @253402300800 /old/file")
        [entry] = self.box.files.list("/old")
        self.assertEqual(entry.modified_time.year, 9999)

    def test_a_user_does_the_operation(self) -> None:
        self.box.files.write("/tmp/theirs", "", user="strata")
        uid = int(self.box.commands.run("id -u strata").stdout)
        self.assertEqual(self.box.files.get_info("/tmp/theirs").uid, uid)

    def test_changes_below_a_directory_are_told(self) -> None:
        self.box.files.make_dir("/watched/below")
        watch = self.box.files.watch_dir("/watched", recursive=True)
        self.assertEqual(watch.get_new_events(), [])
        self.box.files.write("/watched/below/a", "1")
        self.box.files.rename("/watched/below/a", "/watched/b")
        self.box.commands.run("chmod 600 /watched/b; rm /watched/b")
        seen = watch.get_new_events()
        kinds = FilesystemEventType
        expected = [
            FilesystemEvent("below/a", kinds.CREATE),
            FilesystemEvent("below/a", kinds.WRITE),
            FilesystemEvent("below/a", kinds.RENAME),
            FilesystemEvent("b", kinds.CREATE),
            FilesystemEvent("b", kinds.CHMOD),
            FilesystemEvent("b", kinds.REMOVE),
        ]
        self.assertEqual([event for event in seen if event in expected], expected)
        watch.stop()
        with self.assertRaisesRegex(SandboxException, "the watch was stopped"):
            watch.get_new_events()

    def test_a_change_is_told_when_the_call_that_made_it_has_returned(self) -> None:
        self.box.files.make_dir("/told")
        watch = self.box.files.watch_dir("/told")
        for number in range(50):
            self.box.files.write(f"/told/{number}", "x")
            names = {event.name for event in watch.get_new_events()}
            self.assertEqual(names, {str(number)})
        watch.stop()

    def test_only_directories_are_watched(self) -> None:
        with self.assertRaises(FileException) as raised:
            self.box.files.watch_dir("/etc/passwd")
        self.assertEqual(raised.exception.errno, errno.ENOTDIR)
        with self.assertRaises(FileNotFoundException):
            self.box.files.watch_dir("/nonesuch")
