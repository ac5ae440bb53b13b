//! A host whose disk is full while a sandbox writes, on any backend. Needs root: it mounts a small
//! filesystem.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

use micabox_testing::run;

use super::{Holding, Home, PATIENCE, assert_clean, image, wait};

const MIB: usize = 1 << 20;

/// A small filesystem of its own for a store; dropping it unmounts it.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes one for the store of a home, which has none yet.
    pub fn new(home: &Home, size: &str) -> Self {
        let disk = Self(home.store());
        fs::create_dir(&disk.0).unwrap();
        let options = format!("size={size},mode=700");
        let mount = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        run(Command::new("mount").args(mount).arg(&disk.0));
        disk
    }

    /// Fills it except for about `free` bytes.
    pub fn fill(&self, free: usize) {
        let _ = fs::remove_file(self.filler());
        let mut filler = File::create(self.filler()).unwrap();
        // Until the filesystem is full.
        while filler.write_all(&[1; 4096]).is_ok() {}
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(free as u64)).unwrap();
    }

    pub fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Fails unless a message is that the store's disk is full.
#[track_caller]
pub fn assert_named(home: &Home, message: &str) {
    let named = format!("no space left for `{}", home.store().display());
    assert!(message.contains(&named), "{message}");
    assert!(message.contains("`mica store prune`"), "{message}");
}

/// Makes a store on a small filesystem, with the image `box`.
fn small() -> (SmallDisk, Home) {
    let home = Home::empty();
    let disk = SmallDisk::new(&home, "96m");
    home.load(&image::layers(), &image::config());
    (disk, home)
}

/// A `mica` with its stderr in a pipe.
struct Messages {
    mica: Child,
    stderr: BufReader<ChildStderr>,
}

impl Messages {
    fn start(mut mica: Command) -> Self {
        let mica = mica.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut mica = mica.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(mica.stderr.take().unwrap());
        Self { mica, stderr }
    }

    /// Waits for a line of its stderr with these words.
    fn wait_for(&mut self, words: &str) {
        let mut all = String::new();
        while !all.contains(words) {
            let count = self.stderr.read_line(&mut all).unwrap();
            assert!(count > 0, "never said {words:?}: {all}");
        }
    }

    fn finish(self) -> (i32, String) {
        let ended = self.mica.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        (ended.status.code().unwrap_or(-1), text)
    }
}

/// The host's disk is full while the guest writes to its own: nothing fails, the sandbox can be
/// frozen and stopped, and continues when there is room.
pub fn writes_wait_for_room(backend: &str) {
    let (small, home) = small();
    let home = &home;
    let run = ["run", "--name", "it", "--backend", backend, "--net", "none"];
    // Generates a file of one letter, so that the command needs only memory meanwhile.
    let script =
        "tr '\\0' x </dev/zero | head -c 33554432 >big && sync && md5sum big; echo $?; exit 7";
    let command = ["--upper", "disk:128m", "box", "sh", "-c", script];
    small.fill(24 * MIB);
    let mut mica = Messages::start(home.mica(&[&run[..], &command].concat()));
    mica.wait_for("the host's disk is full");
    // The sandbox can be frozen.
    drop(Holding::new(home, "it"));
    small.make_room();
    let (code, said) = mica.finish();
    let whole = Command::new("sh")
        .args(["-c", "tr '\\0' x </dev/zero | head -c 33554432 | md5sum"])
        .output()
        .unwrap();
    let sum = String::from_utf8(whole.stdout).unwrap();
    let sum = sum.split(' ').next().unwrap();
    assert_eq!((code, said), (7, format!("{sum}  big\n0\n")));
    let disk = home.directory_of("it").join("upper.ext4");
    assert_clean(&disk);
    let list = home.output(&["ps", "-a", "--json"]).json();
    assert_eq!(
        (&list[0]["state"], &list[0]["status"]["code"]),
        (&"exited".into(), &7.into())
    );

    // Until the user kills the sandbox.
    home.output(&["rm", "it"]).ok();
    small.fill(24 * MIB);
    let mut mica = Messages::start(home.mica(&[&run[..], &command].concat()));
    mica.wait_for("the host's disk is full");
    let begun = Instant::now();
    let stop = home.output(&["stop", "-t", "1", "it"]);
    let took = begun.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    let text = stop.stderr();
    assert_eq!(stop.code(), 1, "{text}");
    assert!(
        text.contains("the host's disk is full, and its machine was killed"),
        "{text}"
    );
    assert_ne!(mica.finish().0, 0);
    small.make_room();
}

/// The end of a command is recorded although nothing can be written any more.
pub fn an_end_is_recorded(backend: &str) {
    let (small, home) = small();
    let home = &home;
    let run = [
        "run",
        "-i",
        "--name",
        "it",
        "--backend",
        backend,
        "--net",
        "none",
    ];
    let command = ["box", "sh", "-c", "echo ready >&2; read line; exit 7"];
    let mut mica = Messages::start(home.mica(&[&run[..], &command].concat()));
    mica.wait_for("ready");
    small.fill(0);
    drop(mica.mica.stdin.take());
    let mut rest = String::new();
    mica.stderr.read_line(&mut rest).unwrap();
    assert_eq!((wait(&mut mica.mica), rest.as_str()), (7, ""));
    let list = home.output(&["ps", "-a", "--json"]).json();
    assert_eq!(
        (&list[0]["state"], &list[0]["status"]["code"]),
        (&"exited".into(), &7.into())
    );
    assert!(!home.files_of("it").iter().any(|name| name.contains("tmp")));

    // Nor does it keep a sandbox from being listed, paused and removed, with what it can't save.
    small.make_room();
    let run = ["run", "-d", "--idle", "--name", "db", "--upper", "disk:64m"];
    home.output(&[&run[..], &["--backend", backend, "--net", "none", "box"]].concat())
        .ok();
    small.fill(0);
    // The guest stops as soon as it writes something back, so that nothing starts in it after this.
    let write = "head -c 400000 /dev/zero >/x; echo written; exec sleep 1000";
    let mut writing = home.start(&["exec", "db", "sh", "-c", write]);
    assert_eq!(writing.line(), "written");
    home.output(&["pause", "db"]).ok();
    let list = home.output(&["ps", "--json"]).json();
    assert_eq!(list[0]["state"], "paused");
    home.output(&["rm", "-f", "db", "it"]).ok();
    writing.wait();
    assert!(home.sandboxes().is_empty());
}
