//! A slow disk, on our own monitor. `scripts/test-kvm` runs this.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use micabox_fuse::message::{Attributes, Reply, Request, Until};
use micabox_fuse::{Answer, Channel, Offer, Server, flag, opcode, serve};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::{Home, PATIENCE, Running, image, wait};

/// The only file's number, and its name.
const NUMBER: u64 = 2;
const NAME: &str = "disk";

/// Flags of an open file (`FOPEN_DIRECT_IO`, `FOPEN_NOFLUSH`). Closing the file does not wait: a killed owner is gone
/// before its machine is.
const OPENED: u32 = 1 << 0 | 1 << 5;

const VALID: Until = Until::Time(Duration::from_secs(1));

/// A FUSE filesystem with one file, whose contents are in another file. Once `holds` is set, the
/// next read or write lasts until what `held` then has is dropped.
struct Slow {
    file: File,
    holds: Arc<AtomicBool>,
    held: Sender<Held>,
}

/// A request that has no answer yet.
type Held = Sender<()>;

impl Slow {
    fn wait_if_held(&self) {
        if self.holds.swap(false, Ordering::SeqCst) {
            let (held, released) = channel();
            let _ = self.held.send(held);
            let _ = released.recv();
        }
    }

    fn attributes(&self, number: u64) -> Attributes {
        let (kind, permissions) = match number {
            NUMBER => (FileType::RegularFile, 0o666),
            _ => (FileType::Directory, 0o777),
        };
        let size = self.file.metadata().unwrap().len();
        Attributes {
            number,
            size,
            blocks: size / 512,
            mode: kind.as_raw_mode() | permissions,
            links: 1,
            block_size: 4096,
            ..Attributes::default()
        }
    }

    fn reply(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let (mut body, mut reply) = (request.body, Reply::new());
        match request.opcode {
            opcode::LOOKUP if body.name()?.to_bytes() == NAME.as_bytes() => {
                reply.entry(NUMBER, &self.attributes(NUMBER), VALID, VALID);
            }
            opcode::LOOKUP => return Err(Errno::NOENT),
            opcode::GETATTR => reply.only_attributes(&self.attributes(request.node), VALID),
            opcode::OPEN => {
                reply.u64(0);
                reply.u32(OPENED);
                reply.u32(0);
            }
            opcode::READ => {
                let (_handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
                reply.fill(size, |bytes| Ok(self.file.read_at(bytes, offset).unwrap()))?;
                self.wait_if_held();
            }
            opcode::WRITE => {
                let (_handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
                let _flags_and_lock = body.bytes(20)?;
                self.file.write_all_at(body.bytes(size)?, offset).unwrap();
                self.wait_if_held();
                reply.u32(size);
                reply.u32(0);
            }
            opcode::STATFS => {
                reply.bytes(&[0; 40]);
                reply.u32(512);
                reply.u32(255);
                reply.bytes(&[0; 32]);
            }
            opcode::FSYNC | opcode::RELEASE => {}
            _ => return Err(Errno::NOSYS),
        }
        Ok(reply)
    }
}

impl Server for Slow {
    fn offer(&self) -> Offer {
        Offer {
            flags: flag::ASYNC_READ,
            background: 16,
        }
    }

    fn needs_written(&self, _: &Request<'_>) -> bool {
        false
    }

    fn serve(&self, request: &Request<'_>, answer: Option<Answer<'_>>) {
        if let Some(answer) = answer {
            answer.reply(self.reply(request));
        }
    }
}

/// An ext4 with a system, on a filesystem in a directory of `home` that can hold a request. Dropping it lets the
/// request go on: otherwise, processes that wait for it could not end.
struct SlowDisk {
    path: String,
    mount: String,
    holds: Arc<AtomicBool>,
    held: Receiver<Held>,
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.mount, UnmountFlags::DETACH);
    }
}

fn slow_disk(home: &Home) -> SlowDisk {
    if !Path::new("/dev/fuse").exists() {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(
            CWD,
            "/dev/fuse",
            FileType::CharacterDevice,
            mode,
            makedev(10, 229),
        )
        .unwrap();
    }
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (disk, archive, place) = (at("root.ext4"), at("base.tar"), at("slow"));
    fs::write(&archive, &image::layers()[0]).unwrap();
    home.output(&["ext4", "mkfs", &disk, "--size", "64M"]).ok();
    home.output(&["ext4", "import", &disk, &archive]).ok();

    fs::create_dir(&place).unwrap();
    let open = |path: &str| File::options().read(true).write(true).open(path).unwrap();
    let device = open("/dev/fuse");
    // The machine's process runs as the user `nobody`.
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
        device.as_raw_fd()
    );
    let options = CString::from_vec_with_nul(options.into_bytes()).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("slow", &place, "fuse", flags, options.as_c_str()).unwrap();
    // While one thread holds a request, the others answer.
    let channels = [0; 3].map(|_| Channel::new(device.try_clone().unwrap().into()));
    let holds = Arc::new(AtomicBool::new(false));
    let (sender, held) = channel();
    let slow = Slow {
        file: open(&disk),
        holds: Arc::clone(&holds),
        held: sender,
    };
    thread::spawn(move || serve(&channels, &slow));
    SlowDisk {
        path: format!("{place}/{NAME}"),
        mount: place,
        holds,
        held,
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
    let held = slow.held.recv_timeout(PATIENCE).unwrap();
    // The request is held until the console was seen to work meanwhile.
    let (seen, is_seen) = channel();
    let waiter = thread::spawn(move || {
        let in_time = is_seen.recv_timeout(PATIENCE).is_ok();
        drop(held);
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
    let held = slow.held.recv_timeout(PATIENCE).unwrap();
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
    // Sleep: nothing may start meanwhile, since the first machine still uses the disk.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(fs::read(&record).unwrap(), before);
    drop(held);
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
