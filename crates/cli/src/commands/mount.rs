//! `mica mount`

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use micabox::words::Bytes;
use micabox::{
    MountOptions, MountRecord, MountedTree, Mounts, Sandboxes, ServedBy, Tree, TreeKind,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::inside::run_in;
use super::memfs::limits;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::output::{Table, ago, print, print_json};
use micabox_program::settings;

/// Mount an image, a sandbox's disk, a snapshot, a filesystem in a file or a directory, to look into it
///
/// Nothing boots, and nothing is copied; only a packed image (`mica store pack`) becomes whole. A sandbox is shown as
/// it is now; it may run on. The tree is there until `mica umount`; with a command, for as long as the command runs in
/// it, whose code mica exits with. Without arguments, mica lists what is mounted.
///
/// A jailed process of mica's reads the files, and answers the kernel (FUSE). If root mounts an image, the
/// kernel reads it itself where it can. As a user who is not root this needs `fusermount3`; without it,
/// only a command sees the tree, and files of other users show the overflow user as their owner. Permissions hold where other
/// users reach the tree, as root's; a tree of one's own can be read, and with --rw changed, as by root.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mica mount [OPTIONS] SOURCE MOUNTPOINT [-- COMMAND...]\n       \
                            mica mount [--list] [--json]"
)]
pub struct Args {
    /// Let it be changed: changes are in memory, for `mica diff` and `mica commit`, and gone when it is
    /// unmounted
    #[arg(long)]
    rw: bool,
    /// How much changes may take, such as 2G; 0 for as much as there is [default: half of the machine's memory]
    #[arg(long, requires = "rw")]
    size: Option<Bytes>,
    /// Keep changes of an image in this directory, which is made if it is missing, for later mounts of the
    /// same image. The kernel's overlay does, for root
    #[arg(
        long,
        value_name = "DIRECTORY",
        requires = "rw",
        conflicts_with = "size"
    )]
    upper: Option<PathBuf>,
    /// What serves it [default: for root the kernel where it can, unless changes are in memory]
    #[arg(long, value_name = "WHAT", value_enum)]
    with: Option<With>,
    /// Stay in the foreground, and unmount at the end
    #[arg(long, conflicts_with = "command")]
    foreground: bool,
    /// List what is mounted, with filesystems of `mica memfs`
    #[arg(long, conflicts_with = "source")]
    list: bool,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "source")]
    json: bool,
    /// An image, a sandbox, a snapshot, a file with an EROFS or ext4 filesystem, or a directory; the first that
    /// there is of a file, a sandbox, a snapshot, an image and a directory. With a slash in it, it is a path
    #[arg(value_name = "SOURCE", requires = "place")]
    source: Option<OsString>,
    /// The directory to mount it on
    #[arg(value_name = "MOUNTPOINT")]
    place: Option<PathBuf>,
    /// A command to run in it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum With {
    /// The kernel's own EROFS, and with --rw its overlay
    Kernel,
    /// A process of mica's, over FUSE
    Fuse,
}

/// A mounted tree, as scripts see it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    record: MountRecord,
    /// Whether anything answers for it.
    is_alive: bool,
}

/// Mounts a tree, or lists those that are.
pub fn execute(args: &Args) -> Outcome {
    let (Some(source), Some(place)) = (&args.source, &args.place) else {
        return list(args.json);
    };
    let outcome = mount(args, source, place);
    if !args.command.is_empty() {
        // The exit code then differs from the command's own ones.
        return outcome.map_err(|failure| failure.at_least(EXIT_MICA));
    }
    outcome
}

fn mount(args: &Args, source: &OsStr, place: &Path) -> Outcome {
    let sandboxes = sandboxes()?;
    let tree = Tree::find(&sandboxes, source)?;
    let room = limits(args.size.map(|Bytes(bytes)| bytes), None);
    let is_command = !args.command.is_empty();
    let options = MountOptions {
        is_writable: args.rw,
        upper: args.upper.as_deref().map(absolute).transpose()?,
        size: room.bytes,
        inodes: room.inodes,
        by: args.with.map(|with| match with {
            With::Kernel => ServedBy::Kernel,
            With::Fuse => ServedBy::Fuse,
        }),
        is_ours: is_command || args.foreground,
        only_own: is_command,
    };
    let name = source.to_string_lossy();
    let mounts = Mounts::of(&sandboxes);
    if !options.is_ours {
        mounts.mount(&tree, &name, place, &options)?;
        return Ok(0);
    }
    // Before others can see the mount: a signal from then on ends it.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .map_err(|error| Failure::of(&error).context("catching signals"))?;
    let mounted = mounts.mount(&tree, &name, place, &options)?;
    stay(mounted, &args.command, signals)
}

/// Returns a path without links, whose last directory may not exist yet.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::of(&error).context(&format!("finding {}", path.display()));
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        found => return found.map_err(failed),
    }
    let path = std::path::absolute(path).map_err(failed)?;
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => Ok(above.canonicalize().map_err(failed)?.join(name)),
        _ => Ok(path),
    }
}

/// Runs the command in the tree, or waits for a signal or the unmount. Unmounts.
fn stay(mounted: MountedTree, command: &[OsString], mut signals: Signals) -> Outcome {
    let mounted = Arc::new(mounted);
    let server = {
        let (mounted, stop) = (Arc::clone(&mounted), signals.handle());
        thread::spawn(move || {
            let ended = mounted.wait();
            if !mounted.is_kernels() {
                stop.close();
            }
            ended
        })
    };
    let code = match command.split_first() {
        Some((program, arguments)) => run_in(&mounted.record.place, program, arguments, signals),
        None => {
            let _ = signals.forever().next();
            Ok(0)
        }
    };
    mounted.unmount();
    if server.is_finished() {
        server.join().unwrap_or(Ok(()))?;
    }
    code
}

fn list(is_json: bool) -> Outcome {
    let mounts = Mounts::of(&sandboxes()?).list()?;
    if is_json {
        let shown = mounts.into_iter();
        let shown = shown.map(|(record, is_alive)| Shown { record, is_alive });
        print_json(&shown.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let mut table = Table::new(&["MOUNTPOINT", "SOURCE", "KIND", "WITH", "CHANGES", "MOUNTED"]);
    for (record, is_alive) in mounts {
        let with = match record.by {
            _ if !is_alive => "nothing: its server was killed",
            ServedBy::Kernel => "kernel",
            ServedBy::Fuse => "fuse",
        };
        table.row([
            record.place.to_string_lossy().into_owned(),
            record.source,
            kind(record.kind).into(),
            with.into(),
            match (record.upper, record.is_writable) {
                _ if record.kind == TreeKind::Memory => "-".into(),
                (Some(upper), _) => upper.to_string_lossy().into_owned(),
                (None, true) => "memory".into(),
                (None, false) => "none".into(),
            },
            ago(record.created),
        ]);
    }
    print(&table.render())?;
    Ok(0)
}

fn kind(kind: TreeKind) -> &'static str {
    match kind {
        TreeKind::Image => "image",
        TreeKind::Sandbox => "sandbox",
        TreeKind::Snapshot => "snapshot",
        TreeKind::File => "file",
        TreeKind::Directory => "directory",
        TreeKind::Memory => "memfs",
    }
}

fn sandboxes() -> Result<Sandboxes, Failure> {
    settings::sandboxes(&settings::store()?)
}
