//! `mica cp`

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use micabox::{Error, PathKind, SandboxRef, Sandboxes};
use micabox_image::decompressed;
use micabox_overlay::host::{Place, pack, place, unpack};
use micabox_overlay::through_links;

use crate::commands::notes;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::pass_on;
use micabox_program::{output, settings};

/// Copy files and directories into a sandbox, or out of one
///
/// As with Docker: into an existing directory the copy goes inside, and DIRECTORY/. means its
/// contents; a path in a sandbox begins at its root, with or without a slash; what a symbolic link leads
/// to is written, also if that is not there yet. Files copied in belong to root, files copied out to the
/// user who copies. Times, permissions, holes and user attributes are kept. Missing parent directories in
/// the sandbox are made.
///
/// In a running sandbox, its agent reads and writes what programs inside see. Of a stopped one, the
/// disk is read and written directly; nothing is mounted.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mica cp [OPTIONS] FROM|- SANDBOX:PATH\n       mica cp [OPTIONS] SANDBOX:PATH TO|-"
)]
pub struct Args {
    /// Keep owners, by number, and access control lists; out of a sandbox, for root, also set-id
    /// bits, capabilities, devices and FIFOs
    #[arg(short, long)]
    archive: bool,

    /// If FROM is a symbolic link, copy its target
    #[arg(short = 'L', long)]
    follow_link: bool,

    /// Accepted as with Docker: nothing is shown while it copies
    #[arg(short, long, hide = true)]
    quiet: bool,

    /// The source; - unpacks an archive from stdin, which may be compressed with gzip or zstd
    #[arg(value_name = "FROM")]
    from: String,

    /// The destination; - writes an archive to stdout
    #[arg(value_name = "TO")]
    to: String,
}

/// Copies into a sandbox or out of one.
pub fn execute(args: &Args) -> Outcome {
    for (path, what) in [(&args.from, "source"), (&args.to, "destination")] {
        if path.is_empty() {
            return Err(Failure::new(format!("the {what} is empty"))
                .hint("`.` is the current directory, and `-` a standard stream"));
        }
    }
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    match (inside(&args.from), inside(&args.to)) {
        (None, Some((name, path))) => copy_in(args, &found(&sandboxes, name)?, &path),
        (Some((name, path)), None) => copy_out(args, &found(&sandboxes, name)?, name, &path),
        _ => Err(
            Failure::new("one path must be in a sandbox, and the other on the host")
                .hint("write SANDBOX:PATH, and ./name for a host file with a colon in its name"),
        ),
    }
}

/// Splits `SANDBOX:PATH`, whose path begins at the sandbox's root; None for a path of the host, which is one
/// with a slash or a dot before its first colon, as with Docker.
fn inside(name: &str) -> Option<(&str, String)> {
    let (sandbox, path) = name.split_once(':')?;
    let is_inside = !sandbox.is_empty() && !sandbox.contains('/') && !sandbox.starts_with('.');
    is_inside.then(|| (sandbox, format!("/{}", path.trim_start_matches('/'))))
}

fn found(sandboxes: &Sandboxes, name: &str) -> Result<SandboxRef, Failure> {
    sandboxes.get(name).map_err(|error| match error {
        Error::NoSuchSandbox(_) => Failure::from(error).hint(
            "`mica ps -a` lists all sandboxes; ./name is a host file with a colon in its name",
        ),
        error => error.into(),
    })
}

fn copy_in(args: &Args, sandbox: &SandboxRef, path: &str) -> Outcome {
    let (kind, leads_to) = sandbox.leads_to(path.as_bytes())?;
    if args.from == "-" {
        if kind != PathKind::Directory {
            let message = format!("cannot unpack into `{}`: not a directory", path);
            return Err(Failure::new(message)
                .hint("an archive is unpacked into a directory of the sandbox"));
        }
        return unpack_stdin(sandbox, path);
    }
    let from = Path::new(&args.from);
    let reading =
        |error: io::Error| Failure::of(&error).context(&format!("reading {}", from.display()));
    let is_followed = args.follow_link || args.from.ends_with('/') || contents(&args.from);
    let metadata = if is_followed {
        fs::metadata(from)
    } else {
        fs::symlink_metadata(from)
    };
    let is_directory = metadata.map_err(reading)?.is_dir();
    // The real name, even for `.` and `..`.
    let named = match from.file_name() {
        Some(name) => name.to_owned(),
        None => {
            let whole = from.canonicalize().map_err(reading)?;
            whole.file_name().unwrap_or_default().to_owned()
        }
    };
    let to = place(
        is_directory,
        contents(&args.from),
        named.as_bytes(),
        &leads_to,
        kind,
    )
    .map_err(Failure::new)?;
    let Place { parent, name } = to;
    let (read_end, write_end) = io::pipe().map_err(reading)?;
    std::thread::scope(|scope| {
        let name = name.as_slice();
        let packing = pack::Packing {
            follow: is_followed,
            owners: args.archive,
            special: pack::Special::Packed,
        };
        let packing = scope.spawn(move || packing.pack(from, name, write_end));
        let written = sandbox.write_archive(&parent, read_end.into());
        match packing.join() {
            // If the unpacking side has failed, its error is the cause of the closed pipe.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(reading(error)),
            Ok(packed) => {
                notes::print_left_out(&written?);
                notes::print_host_sockets(&packed.unwrap_or_default());
                Ok(0)
            }
            Err(_) => Err(Failure::new("the thread that reads the files died")),
        }
    })
}

/// Unpacks an archive on stdin below a directory of the sandbox.
fn unpack_stdin(sandbox: &SandboxRef, path: &str) -> Outcome {
    let reading = |error: io::Error| Failure::of(&error).context("reading stdin");
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(reading)?;
    let mut archive = decompressed(File::from(stdin)).map_err(reading)?;
    let (read_end, mut write_end) = io::pipe().map_err(reading)?;
    // The sandbox is asked by another thread: this one ends with its last byte, or when nothing reads any more.
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| sandbox.write_archive(path.as_bytes(), read_end.into()));
        let read = io::copy(&mut archive, &mut write_end);
        drop(write_end);
        let written = writing
            .join()
            .map_err(|_| Failure::new("the thread that asks the sandbox died"))?;
        match read {
            // An archive that is cut off has its reason here.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(reading(error)),
            _ => {
                notes::print_left_out(&written?);
                Ok(0)
            }
        }
    })
}

fn copy_out(args: &Args, sandbox: &SandboxRef, name: &str, path: &str) -> Outcome {
    let read = |name: &[u8]| sandbox.read_archive(path.as_bytes(), args.follow_link, name);
    let base = path.trim_end_matches("/.").trim_end_matches('/');
    let named = base.rsplit('/').next().unwrap_or_default();
    if args.to == "-" {
        if output::stdout_is_terminal() {
            return Err(Failure::new("refusing to write an archive to a terminal")
                .hint("redirect stdout to a file"));
        }
        let mut archive = read(named.as_bytes())?;
        match pass_on(&mut archive, &mut output::raw::stdout()) {
            Ok(true) => notes::print(&archive.finish()?, name),
            Ok(false) => {}
            // The error about the sandbox's disk explains more.
            Err(failure) => return Err(archive.verdict().map_or(failure, Failure::from)),
        }
        return Ok(0);
    }
    // What a link leads to is written, as inside.
    let leads_to = through_links(args.to.as_bytes(), |path| {
        let target = fs::read_link(OsStr::from_bytes(path)).ok();
        Ok::<_, Infallible>(target.map(|target| target.into_os_string().into_vec()))
    });
    let to = leads_to.map_or_else(|never| match never {}, OsString::from_vec);
    let to = Path::new(&to);
    let kind = match fs::metadata(to) {
        Ok(metadata) if metadata.is_dir() => PathKind::Directory,
        Ok(_) => PathKind::Other,
        Err(_) => PathKind::Nothing,
    };
    // Its kind is known when the archive comes; its name in the archive does not matter.
    let mut archive = read(unpack::ROOT)?;
    let unpacked = unpack::unpack(&mut archive, args.archive, |is_directory| {
        let all = contents(path) || named.is_empty();
        let Place { mut parent, name } = place(
            is_directory,
            all,
            named.as_bytes(),
            to.as_os_str().as_bytes(),
            kind,
        )?;
        parent.push(b'/');
        parent.extend(name);
        Ok(Path::new(OsStr::from_bytes(&parent)).to_owned())
    });
    match unpacked {
        Ok(unpacked) => {
            notes::print(&archive.finish()?, name);
            let is_all = unpacked
                .special
                .as_ref()
                .is_some_and(|path| is_top(path, to, named));
            if is_all {
                return Err(special(path));
            }
            notes::print_unpacked(&unpacked);
            Ok(0)
        }
        // The archive of a socket is empty.
        Err(problem @ unpack::Problem::Foreign(_)) => {
            let notes = archive.finish()?;
            Err(if notes.sockets.is_empty() {
                problem.into()
            } else {
                special(path)
            })
        }
        // The error about the sandbox's disk explains more.
        Err(problem @ unpack::Problem::Archive(_)) => {
            let verdict = archive.verdict().map(Failure::from);
            Err(verdict.unwrap_or_else(|| problem.into()))
        }
        Err(problem) => Err(problem.into()),
    }
}

/// Returns whether a host path is that of the copy itself.
fn is_top(path: &Path, to: &Path, named: &str) -> bool {
    path == to || path == to.join(named)
}

fn special(path: &str) -> Failure {
    let what = "sockets are not copied, devices and FIFOs only by root";
    Failure::new(format!("{path}: {what}")).hint("`mica cp -a` as root makes devices and FIFOs")
}

/// Returns whether a path stands for a directory's contents.
fn contents(path: &str) -> bool {
    path == "." || path.ends_with("/.")
}
