//! `mica memfs`

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use micabox_mount::{Cache, Filesystem, Limits, Manner, Place, Shown, Tree, load, save};
use micabox_overlay::host::WholeFile;
use rustix::fs::stat;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::ext4::size as parse_size;
use super::inside::run_in;
use crate::Outcome;
use crate::failure::{EXIT_MICA, Failure};

/// How long the kernel may take to give back what it has cached, once nothing is mounted any more.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Bytes of memory for each inode that a filesystem may have, unless a number is given: as on tmpfs.
pub(super) const BYTES_PER_INODE: u64 = 4096;

/// Mount an empty filesystem in memory
///
/// It is there until it is unmounted, or until Ctrl-C. With a command, it is there for as long as the
/// command runs in it; mica then exits with the command's code. What is in it is gone afterwards.
///
/// As a user who is not root this needs `fusermount3`; without it, only the command sees the filesystem.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to mount it on, which also gives its owner and permissions
    #[arg(value_name = "MOUNTPOINT")]
    place: PathBuf,
    /// How much it may hold, such as 2G [default: half of the machine's memory]
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// How many files it may hold [default: one for each 4 KiB of its size]
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
    let is_command = !args.command.is_empty();
    let outcome = run(args);
    if is_command {
        // The exit code then differs from the command's own ones.
        return outcome.map_err(|failure| failure.at_least(EXIT_MICA));
    }
    outcome
}

fn run(args: &Args) -> Outcome {
    let kept = |action: &str, path: &Path, error: micabox_mount::KeepError| {
        Failure::of(&error).context(&format!("{action} {}", path.display()))
    };
    let output = args.save.as_deref().map(|path| {
        let output = WholeFile::create(path).and_then(|output| {
            if output.is_regular() {
                return Ok((output, path));
            }
            let what = "it is there, and no regular file";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        });
        output.map_err(|error| kept("saving", path, error.into()))
    });
    let output = output.transpose()?;
    let files = Arc::new(empty(args)?);
    if let Some(path) = &args.load {
        load(&files, path).map_err(|error| kept("loading", path, error))?;
    }
    let manner = Manner::possible(&args.place, !args.command.is_empty()).map_err(failed)?;
    // Before any thread: a namespace is entered by a process that has one.
    let place = Arc::new(Place::mount(&args.place, manner, Shown::Memory).map_err(failed)?);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .map_err(|error| Failure::of(&error).context("catching signals"))?;
    let server = {
        let (files, channels) = (Arc::clone(&files), place.channels().map_err(failed)?);
        let (cache, stop) = (args.cache.into(), signals.handle());
        thread::spawn(move || {
            let served = Tree::new(&files, cache).with_queues().serve(channels);
            stop.close();
            served
        })
    };
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
    let saved = output.map(|(output, path)| {
        save(&files, output).map_err(|error| kept("saving", path, error))?;
        if is_used {
            let what =
                "a program still uses the filesystem: what it writes from now on is not saved";
            return Err(Failure::new(what));
        }
        match files.torn_files() {
            0 => Ok(()),
            count => {
                let what = format!(
                    "{count} of the saved files lack what was written last: there was no room"
                );
                let hint =
                    "--size and --inodes give more; with `--cache none`, writes without room fail";
                Err(Failure::new(what).hint(hint))
            }
        }
    });
    if !is_used {
        server.join().unwrap_or(Ok(())).map_err(failed)?;
    }
    let code = code?;
    saved.unwrap_or(Ok(())).map(|()| code)
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
    let bytes = args.size.unwrap_or_else(half_of_memory);
    let limits = Limits {
        bytes,
        inodes: args.inodes.unwrap_or(bytes / BYTES_PER_INODE),
    };
    let root = stat(&args.place)
        .map_err(|error| Failure::of(&error).context(&args.place.display().to_string()))?;
    let mode = (root.st_mode & 0o7777) as u16;
    Ok(Filesystem::new(limits, mode, root.st_uid, root.st_gid))
}

/// Returns half of the machine's memory in bytes.
pub(super) fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit) / 2
}
