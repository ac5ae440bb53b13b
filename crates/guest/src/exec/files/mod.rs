//! Performs operations on the sandbox's files ([`micabox_wire::files`]), in a process of the sandbox
//! that has switched to its user.

#![expect(
    clippy::disallowed_methods,
    reason = "standard streams lead to the agent here"
)]

mod failed;
mod list;
mod operate;
mod reply;
mod short;
mod stream;
mod watch;
mod work;

use std::os::fd::OwnedFd;

use micabox_tree::Root;
use micabox_wire::files::{FILES, FileRequest};
use micabox_wire::{Exec, StartFailed, StartFailure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::watches::Watching;
use crate::quoted::shown;
use failed::Failed;
use reply::send;
pub use short::{Ended, end, shortened};
pub use work::Work;

/// Returns whether the command is an operation on files.
pub fn is_operation(spec: &Exec) -> bool {
    spec.argv.first().is_some_and(|name| name == FILES)
}

/// Returns whether the command watches files.
pub fn is_watch(spec: &Exec) -> bool {
    matches!(request_of(spec), Some(FileRequest::Watch { .. }))
}

/// Returns the request of an operation that may be over soon, and takes no stdin. Of lists only one
/// directory's.
pub fn short(spec: &Exec) -> Option<&[u8]> {
    use FileRequest as Request;
    let is_short = matches!(
        request_of(spec)?,
        Request::Read { .. }
            | Request::Stat { .. }
            | Request::List { depth: 0 | 1, .. }
            | Request::MakeDirectory { .. }
            | Request::Remove { .. }
            | Request::Rename { .. }
            | Request::Symlink { .. }
            | Request::HardLink { .. }
            | Request::ReadLink { .. }
            | Request::Resolve { .. }
            | Request::Set { .. }
    );
    spec.argv.get(1).filter(|_| is_short).map(Vec::as_slice)
}

fn request_of(spec: &Exec) -> Option<FileRequest> {
    let [name, request] = spec.argv.as_slice() else {
        return None;
    };
    let is_operation = name == FILES;
    is_operation.then(|| FileRequest::decode(request).ok())?
}

/// Opens the root of the process.
pub fn root() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty())
}

/// Begins an operation: does all of it but what needs stdin and stdout. The process must be
/// [prepared](prepare).
pub fn begin(request: &[u8], watching: Option<Watching>) -> Result<Work, StartFailed> {
    let failed = |message: String, errno: Option<Errno>| StartFailed {
        reason: StartFailure::File,
        message,
        errno: errno.map_or(0, Errno::raw_os_error),
    };
    let request = FileRequest::decode(request);
    let request = request.map_err(|error| failed(error.to_string(), Some(Errno::INVAL)))?;
    let begun = root()
        .map(Root::new)
        .map_err(Failed::from)
        .and_then(|root| operate::begin(root, request, watching));
    begun.map_err(|problem| {
        let message = match &*problem.path {
            [] => problem.message,
            path => format!("{}: {}", shown(path), problem.message),
        };
        failed(message, problem.errno)
    })
}

/// Does the rest of an operation. Returns the exit code.
pub fn finish(work: Work) -> i32 {
    let Err(problem) = stream::finish(work) else {
        return 0;
    };
    let _ = send(&rustix::stdio::stderr(), &problem.into());
    1
}

/// Lets the modes of requests be those of files, and trees be as deep as paths can be.
pub fn prepare() {
    rustix::process::umask(Mode::empty());
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
