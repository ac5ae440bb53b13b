//! A slow disk, on our own monitor. `scripts/test-kvm` runs this.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, SessionACL, WriteFlags,
};
use rustix::fs::{CWD, Mode, makedev, mknodat};

use crate::support::{Home, Running, image, wait};

/// A timeout far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The only file's number, and its name.
const NUMBER: INodeNo = INodeNo(2);
const NAME: &str = "disk";

/// A FUSE filesystem with one file, whose contents are in another file. Once `holds` is set, the
/// next read or write lasts until another thread answers it.
struct Slow {
    file: File,
    holds: Arc<AtomicBool>,
    held: Sender<Answer>,
}

/// Answers a held request.
type Answer = Box<dyn FnOnce() + Send>;

impl Slow {
    fn answer(&self, answer: Answer) {
        if self.holds.swap(false, Ordering::SeqCst) {
            self.held.send(answer).unwrap()
        } else {
            answer()
        }
    }

    fn attributes(&self, number: INodeNo) -> FileAttr {
        let (kind, perm) = match number {
            NUMBER => (FileType::RegularFile, 0o666),
            _ => (FileType::Directory, 0o777),
        };
        let size = self.file.metadata().unwrap().len();
        FileAttr {
            ino: number,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

const VALID: Duration = Duration::from_secs(1);

impl Filesystem for Slow {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&VALID, &self.attributes(NUMBER), Generation(0))
        } else {
            reply.error(Errno::ENOENT)
        }
    }

    /// Closing the file does not wait: a killed owner is gone before its machine is.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_DIRECT_IO;
        reply.opened(FileHandle(0), flags);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(number));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let length = self.file.read_at(&mut bytes, offset).unwrap();
        bytes.truncate(length);
        self.answer(Box::new(move || reply.data(&bytes)));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.file.write_all_at(data, offset).unwrap();
        let length = u32::try_from(data.len()).unwrap();
        self.answer(Box::new(move || reply.written(length)));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// An ext4 with a system, on a filesystem in a directory of `home` that can hold a request.
struct SlowDisk {
    path: String,
    holds: Arc<AtomicBool>,
    held: Receiver<Answer>,
    _session: BackgroundSession,
}

impl Drop for SlowDisk {
    /// Otherwise, processes that wait for the request could not end.
    fn drop(&mut self) {
        self.held.try_iter().for_each(|answer| answer());
    }
}

fn slow_disk(home: &Home) -> SlowDisk {
    if !Path::new("/dev/fuse").exists() {
        let mode = Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::CharacterDevice;
        mknodat(CWD, "/dev/fuse", kind, mode, makedev(10, 229)).unwrap();
    }
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (disk, archive, mount) = (at("root.ext4"), at("base.tar"), at("slow"));
    fs::write(&archive, &image::layers()[0]).unwrap();
    home.output(&["ext4", "mkfs", &disk, "--size", "64M"]).ok();
    home.output(&["ext4", "import", &disk, &archive]).ok();

    fs::create_dir(&mount).unwrap();
    let holds = Arc::new(AtomicBool::new(false));
    let (sender, held) = channel();
    let slow = Slow {
        file: File::options().read(true).write(true).open(&disk).unwrap(),
        holds: Arc::clone(&holds),
        held: sender,
    };
    let mut config = Config::default();
    // The machine's process runs as the user `nobody`.
    config.acl = SessionACL::All;
    SlowDisk {
        path: format!("{mount}/{NAME}"),
        holds,
        held,
        _session: fuser::spawn_mount(slow, &mount, &config).unwrap(),
    }
}

#[test]
fn a_slow_disk_blocks_only_its_own_requests() {
    let home = Home::empty();
    let slow = slow_disk(&home);
    let in_place = format!("{}:rw", slow.path);
    // A line of input starts `sync`; `read` and `echo` are shell builtins.
    let script = "while read line; do echo $line; case $line in flush) \
                  (echo x > /x; sync; echo flushed) & ;; esac; done";
    let run = ["run", "-i", "--rm", "--backend", "kvm", "--net", "none"];
    let root = ["--root-disk", &in_place, "sh", "-c", script];
    let mut mica = home.mica(&[&run[..], &root].concat());
    let mut mica = mica
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = mica.stdin.take().unwrap();
    let mut lines = BufReader::new(mica.stdout.take().unwrap()).lines();
    let mut say = |line: &str| writeln!(stdin, "{line}").unwrap();
    let mut next = || lines.next().unwrap().unwrap();

    say("ready");
    assert_eq!(next(), "ready");
    slow.holds.store(true, Ordering::SeqCst);
    say("flush");
    assert_eq!(next(), "flush");
    let answer = slow.held.recv_timeout(PATIENCE).unwrap();
    // The request is held until the console was seen to work meanwhile.
    let (seen, is_seen) = channel();
    let waiter = thread::spawn(move || {
        let in_time = is_seen.recv_timeout(PATIENCE).is_ok();
        answer();
        in_time
    });
    for number in 0..20 {
        say(&number.to_string());
        assert_eq!(next(), number.to_string());
    }
    let _ = seen.send(());
    assert!(waiter.join().unwrap(), "the console waited for the disk");
    assert_eq!(next(), "flushed");
    drop(stdin);
    assert_eq!(wait(&mut mica), 0);
}

#[test]
fn a_machine_that_outlives_its_owner_keeps_its_disk() {
    let home = Home::empty();
    let slow = slow_disk(&home);
    let in_place = format!("{}:rw", slow.path);
    let run = ["run", "--name", "it", "--backend", "kvm", "--net", "none"];
    let root = ["--root-disk", &in_place, "sh", "-c"];
    let script = "sync; echo ready; read line; echo 3 > /proc/sys/vm/drop_caches; \
                  cat /bin/busybox > /dev/null; echo done";
    let mut mica = home.mica(&[&run[..], &["-i"], &root, &[script]].concat());
    let mut mica = Running::new({
        mica.stdin(Stdio::piped());
        mica
    });
    assert_eq!(mica.line(), "ready");
    slow.holds.store(true, Ordering::SeqCst);
    drop(mica.stdin());
    // A process that waits in the kernel can't be killed.
    let answer = slow.held.recv_timeout(PATIENCE).unwrap();
    home.kill_owner();
    assert_eq!(mica.wait(), 125);
    let record = home.directory_of("it").join("state.json");
    let before = fs::read(&record).unwrap();
    let mut again = home.start(&["start", "-a", "-i", "it"]);
    let (sender, said) = channel();
    let again = thread::spawn(move || {
        for _ in 0..2 {
            sender.send(again.line()).unwrap();
        }
        again.wait()
    });
    // The first machine still uses the disk, so there is no second.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(fs::read(&record).unwrap(), before);
    answer();
    assert_eq!(said.recv_timeout(PATIENCE).unwrap(), "ready");
    assert_eq!(said.recv_timeout(PATIENCE).unwrap(), "done");
    assert_eq!(again.join().unwrap(), 0);
}

#[test]
fn a_volume_is_mounted_and_keeps_its_writer_from_being_copied() {
    let home = Home::new();
    let run = [
        "run",
        "-d",
        "--rm",
        "--backend",
        "kvm",
        "--idle",
        "--name",
        "it",
    ];
    let mounts = [
        "-v",
        "data:/data",
        "-v",
        "data:/seen:ro",
        "--tmpfs",
        "/t:size=1m",
    ];
    home.output(&[&run[..], &mounts, &["box"]].concat()).ok();
    let script = "echo kept >/data/file; cat /seen/file; ! (echo x >/seen/file) 2>/dev/null; df /t | grep -c 1024";
    let inside = home.output(&["exec", "it", "sh", "-c", script]);
    assert_eq!(inside.ok(), "kept\n1\n");
    let refused = home.output(&["fork", "it"]);
    assert!(
        refused.stderr().contains("it writes to a volume"),
        "{}",
        refused.stderr()
    );
    home.output(&["stop", "it"]).ok();
    // A copy of a reader reads as well.
    let reads = ["-v", "data:/data:ro"];
    home.output(&[&run[..], &reads, &["box"]].concat()).ok();
    let copy = home.output(&["fork", "it"]).ok();
    for name in ["it", copy.trim()] {
        assert_eq!(
            home.output(&["exec", name, "cat", "/data/file"]).ok(),
            "kept\n"
        );
        home.output(&["stop", "-t", "0", name]).ok();
    }
    home.output(&["volume", "rm", "data"]).ok();
}

#[test]
fn a_template_has_no_sandboxs_mounts() {
    let home = Home::new();
    let show = [
        "sh",
        "-c",
        "grep -o ' /[xy] ' /proc/mounts; df /dev/shm | grep -c 2048",
    ];
    let run = |flags: &[&str]| {
        let run = ["run", "--rm", "--backend", "kvm"];
        home.output(&[&run[..], flags, &["box"], &show].concat())
            .stdout()
    };
    assert_eq!(run(&["--tmpfs", "/x", "--shm-size", "2m"]), " /x \n1\n");
    assert_eq!(run(&["--tmpfs", "/y"]), " /y \n0\n");
    assert_eq!(run(&[]), "0\n");
    let templates = std::fs::read_dir(home.store().join("templates")).unwrap();
    assert_eq!(templates.count(), 1);
}
