//! `mica memfs`

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use micabox::words::Bytes;
use micabox::{MemoryRecord, Mounts};
use micabox_mount::{Cache, Filesystem, KeepError, Limits, Manner, Place, Shown, Tree, load, save};
use micabox_overlay::host::WholeFile;
use rustix::fs::stat;
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::inside::run_in;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::{output, settings};

/// How long the kernel may take to give back what it has cached, once nothing is mounted any more.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Bytes of memory for each inode that a filesystem may have, unless a number is given: as on tmpfs.
const BYTES_PER_INODE: u64 = 4096;

/// Inodes that even the smallest filesystem may have.
const FEWEST_INODES: u64 = 1024;

/// What stands for no limit: more than any machine has, and a number that other programs can multiply.
const UNLIMITED: u64 = 1 << 62;

/// Mount an empty filesystem in memory
///
/// It is there until it is unmounted (`mica umount`), or until Ctrl-C. With a command, it is there for as long
/// as the command runs in it; mica then exits with the command's code. What is in it is gone afterwards.
///
/// What it is filled from is foreign: with --load, devices and set-id bits have no effect in it.
///
/// As a user who is not root this needs `fusermount3`; without it, only the command sees the filesystem.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to mount it on, which also gives its owner and permissions
    #[arg(value_name = "MOUNTPOINT")]
    place: PathBuf,
    /// Serve it in the background, until it is unmounted
    #[arg(short, long, conflicts_with = "command")]
    detach: bool,
    /// This is the process in the background
    #[arg(long, hide = true, requires = "detach")]
    served: bool,
    /// How much it may hold, such as 2G; 0 for as much as there is [default: half of the machine's memory]
    #[arg(long)]
    size: Option<Bytes>,
    /// How many files it may hold; 0 for any number [default: one for each 4 KiB of its size]
    #[arg(long, value_name = "NUMBER")]
    inodes: Option<u64>,
    /// What the kernel caches beside it: nothing; a file's contents until it is opened again; or until
    /// the kernel needs the memory
    #[arg(long, value_name = "WHAT", value_enum, default_value = "always")]
    cache: Caching,
    /// Fill it from an archive (tar) or an EROFS image
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Keep what is in it at the end: as an EROFS image if the name ends in .erofs, otherwise as an archive
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// A command to run in it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Caching {
    None,
    Auto,
    Always,
}

impl From<Caching> for Cache {
    fn from(caching: Caching) -> Self {
        match caching {
            Caching::None => Self::None,
            Caching::Auto => Self::Auto,
            Caching::Always => Self::Always,
        }
    }
}

/// Mounts, serves, and runs the command.
pub fn execute(args: &Args) -> Outcome {
    if args.detach && !args.served {
        return detach();
    }
    let is_command = !args.command.is_empty();
    let outcome = run(args);
    if is_command {
        // The exit code then differs from the command's own ones.
        return outcome.map_err(|failure| failure.at_least(EXIT_MICA));
    }
    outcome
}

/// Starts this program once more, in the background, and waits until the filesystem is there.
fn detach() -> Outcome {
    let failed = |error: io::Error| Failure::of(&error).context("starting the server");
    let (mut ready, told) = io::pipe().map_err(failed)?;
    let mut server = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1))
        .arg("--served")
        .stdin(Stdio::null())
        .stdout(told)
        .spawn()
        .map_err(failed)?;
    if ready.read(&mut [0]).map_err(failed)? == 1 {
        return Ok(0);
    }
    // It has said why.
    let code = server.wait().map_err(failed)?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Err(Failure::printed(code.unwrap_or(EXIT_MICA).max(1)))
}

/// Leaves the terminal and the directory that the process was started from.
fn leave_terminal() -> io::Result<()> {
    // It is no leader of processes, and a signal to its creator's is not for it.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    let mut ready = output::raw::stdout();
    ready.write_all(&[1])?;
    ready.flush()?;
    drop(ready);
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}

fn run(args: &Args) -> Outcome {
    let output = args.save.as_deref().map(|path| {
        // The server's own directory is another.
        let output = std::path::absolute(path).and_then(|whole| WholeFile::create(&whole));
        let output = output.and_then(|output| {
            if output.is_regular() {
                return Ok((output, path));
            }
            let what = "it is there, and no regular file";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        });
        output.map_err(|error| kept("saving", path, &error.into()))
    });
    let output = output.transpose()?;
    let files = Arc::new(empty(args)?);
    if let Some(path) = &args.load {
        load(&files, path).map_err(|error| not_loaded(&files, path, &error))?;
    }
    let only_own = !args.command.is_empty();
    let shown = Shown::Memory {
        is_foreign: args.load.is_some(),
    };
    // Before others can see the mount: a signal from then on ends it.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .map_err(|error| Failure::of(&error).context("catching signals"))?;
    // Before any thread: a namespace is entered by a process that has one.
    let place = Arc::new(Place::mount(&args.place, only_own, shown).map_err(failed)?);
    let server = {
        let (files, channels) = (Arc::clone(&files), place.channels().map_err(failed)?);
        let (cache, stop) = (args.cache.into(), signals.handle());
        thread::spawn(move || {
            let served = Tree::new(&files, cache).with_queues().serve(channels);
            stop.close();
            served
        })
    };
    let record = record(&place, args.load.as_deref());
    if args.served {
        leave_terminal().map_err(|error| Failure::of(&error).context("going to the background"))?;
    }
    let code = match args.command.split_first() {
        Some((program, arguments)) => run_in(place.path(), program, arguments, signals),
        None => {
            // Until a signal arrives, or the server has ended.
            let _ = signals.forever().next();
            Ok(0)
        }
    };
    place.flush();
    place.unmount();
    // The kernel gives back what it has cached, unless a process still uses the filesystem.
    let deadline = Instant::now() + LAST_REQUESTS;
    while args.save.is_some() && !server.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    let is_used = !server.is_finished();
    let saved = output.map_or(Ok(()), |(output, path)| keep(&files, output, path, is_used));
    if let (Err(failure), Some(record)) = (&saved, record) {
        record.leave(failure.message());
    }
    if !is_used {
        server.join().unwrap_or(Ok(())).map_err(failed)?;
    }
    let code = code?;
    saved.map(|()| code)
}

/// Records the filesystem, so that it is listed, and unmounted by `mica umount`. It works without.
fn record(place: &Place, loaded: Option<&Path>) -> Option<MemoryRecord> {
    // Only its command sees it.
    if place.manner() == Manner::Namespace {
        return None;
    }
    let source = loaded.map_or("memory".into(), Path::to_string_lossy);
    let recorded = || -> Result<MemoryRecord, Failure> {
        let sandboxes = settings::sandboxes(&settings::store()?)?;
        Ok(Mounts::of(&sandboxes).record_memory(place, &source)?)
    };
    recorded().ok()
}

fn keep(files: &Filesystem, output: WholeFile, path: &Path, is_used: bool) -> Result<(), Failure> {
    save(files, output).map_err(|error| kept("saving", path, &error))?;
    if is_used {
        let what = "a program still uses the filesystem: what it writes from now on is not saved";
        return Err(Failure::new(what));
    }
    match files.torn_files() {
        0 => Ok(()),
        count => {
            let what =
                format!("{count} of the saved files lack what was written last: there was no room");
            let hint =
                "--size and --inodes give more; with `--cache none`, writes without room fail";
            Err(Failure::new(what).hint(hint))
        }
    }
}

fn kept(action: &str, path: &Path, error: &KeepError) -> Failure {
    Failure::of(error).context(&format!("{action} {}", path.display()))
}

fn not_loaded(files: &Filesystem, path: &Path, error: &KeepError) -> Failure {
    let KeepError::File {
        path: name,
        source: Errno::NOSPC,
    } = error
    else {
        return kept("loading", path, error);
    };
    let (limits, usage) = (files.limits(), files.usage());
    let (limit, flag) = if usage.inodes >= limits.inodes {
        (format!("{} files", limits.inodes), "--inodes")
    } else {
        (output::size(limits.bytes), "--size")
    };
    let name = name.escape_ascii();
    let what = format!(
        "loading {}: no room for \"{name}\": the limit is {limit}",
        path.display()
    );
    Failure::new(what).hint(format!("`{flag}` gives more, and `{flag} 0` sets no limit"))
}

fn failed(error: micabox_mount::Error) -> Failure {
    let failure = Failure::of(&error);
    match error {
        micabox_mount::Error::NoHelper(_) => {
            failure.hint("install fuse3, or give a command, which alone sees the filesystem")
        }
        _ => failure,
    }
}

/// Makes the filesystem.
fn empty(args: &Args) -> Result<Filesystem, Failure> {
    let root = stat(&args.place)
        .map_err(|error| Failure::of(&error).context(&args.place.display().to_string()))?;
    let mode = (root.st_mode & 0o7777) as u16;
    let limits = limits(args.size.map(|Bytes(bytes)| bytes), args.inodes);
    Ok(Filesystem::new(limits, mode, root.st_uid, root.st_gid))
}

/// Returns how much a filesystem in memory may hold: as on tmpfs, whole pages, and without limit for 0.
pub(super) fn limits(size: Option<u64>, inodes: Option<u64>) -> Limits {
    let bytes = match size {
        None => half_of_memory(),
        Some(0) => UNLIMITED,
        Some(size) => size.min(UNLIMITED).next_multiple_of(BYTES_PER_INODE),
    };
    let inodes = match inodes {
        None => (bytes / BYTES_PER_INODE).max(FEWEST_INODES),
        Some(0) => UNLIMITED,
        Some(inodes) => inodes,
    };
    Limits { bytes, inodes }
}

/// Returns half of the machine's memory in bytes.
fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit) / 2
}
