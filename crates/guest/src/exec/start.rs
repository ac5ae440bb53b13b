//! From fork to execve: turns a new process into the command.
//!
//! All steps that may block on the sandbox's own files (a FUSE filesystem mounted over `/etc`, say)
//! happen here and not in the agent, after the new process has closed all descriptors of other
//! commands.

#![expect(
    clippy::disallowed_methods,
    reason = "standard streams lead to the agent here"
)]

use std::convert::Infallible;
use std::ffi::{CString, NulError, OsStr, c_char};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use micabox_tree::Root;
use micabox_wire::{
    Confinement, Exec, FLUSH, PROCESSES, StartFailed, StartFailure, ToHost, encode,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstat, statx, syncfs};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::confinement::{self, bound_capabilities, drop_capabilities, set_ulimits};
use super::connect;
use super::environment::{DEFAULT_PATH, Environment};
use super::files;
use super::processes;
use super::program::{self, failed};
use super::stdio::CommandEnds;
use super::watches::Watching;
use crate::errno::{describe, last_errno};
use crate::kernel::{Kernel, has_one_user};
use crate::mount;
use crate::quoted::shown;
use crate::sandbox::child::{close_others, enter, exit, reset_signals};
use crate::sandbox::user::{self, Identity, Unknown};
use crate::sandbox::{Place, proc};

/// The command that a new process must become.
pub struct SpawnRequest<'a> {
    pub id: u32,
    pub spec: &'a Exec,
    pub place: &'a Place,
    pub hostname: &'a str,
    /// Whether it is process 1 of a new PID namespace.
    pub first: bool,
    pub stdio: CommandEnds,
    /// The pipe for the PID and an error. Closed by execve(2).
    pub report: OwnedFd,
    /// What it needs to watch files.
    pub watching: Option<Watching>,
    /// Processes that the agent keeps in the sandbox, by their PIDs there.
    pub kept: &'a [i32],
}

/// Limits of open files per process, as in systemd and Docker: the soft limit works with select(2),
/// and a program may raise it itself up to the hard one.
const OPEN_FILES: Rlimit = Rlimit {
    current: Some(1024),
    maximum: Some(524_288),
};

/// Maximum number of bytes of `/etc/passwd` or `/etc/group`.
const MAX_ACCOUNTS: u64 = 8 * 1024 * 1024;

/// Becomes the command, or reports an error and exits.
pub fn run(mut order: SpawnRequest<'_>) -> ! {
    let watching = order.watching.take();
    let order = &order;
    let pid = rustix::process::getpid().as_raw_pid();
    let _ = rustix::io::write(&order.report, &pid.to_le_bytes());
    let Err(failure) = become_command(order, pid, watching);
    let mut frame = Vec::new();
    let id = order.id;
    if encode(&ToHost::StartFailed { id, failure }, &mut frame).is_ok() {
        let _ = rustix::io::write(&order.report, &frame);
    }
    exit(127)
}

fn become_command(
    order: &SpawnRequest<'_>,
    pid: i32,
    watching: Option<Watching>,
) -> Result<Infallible, StartFailed> {
    let SpawnRequest { spec, .. } = order;
    let kernel = order.place.kernel();
    let confinement = confinement::on(kernel, &spec.confinement);
    reset_signals();
    let mounting = |error: mount::Error| {
        let message = format!("mount /proc: {error}");
        failed(StartFailure::Other, message, Some(error.errno))
    };
    let proc = order
        .first
        .then(proc::mount)
        .transpose()
        .map_err(mounting)?;
    enter(order.place).map_err(|errno| other("enter the sandbox", errno))?;
    if let Some(proc) = proc {
        proc::attach_masked(&proc, kernel).map_err(mounting)?;
    }
    take_streams(order, watching.as_ref())
        .map_err(|errno| other("set up standard streams", errno))?;
    rustix::process::setsid().map_err(|errno| other("start a session", errno))?;
    if spec.tty.is_some() {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())
            .map_err(|errno| other("take the terminal", errno))?;
    }

    if is_list(spec) {
        list_processes(order, pid);
    }
    if is_flush(spec) {
        flush(order);
    }
    if connect::is_connection(spec) {
        let stream = connect::begin(spec)?;
        report_started(order);
        exit(connect::copy(&stream));
    }
    let _ = see_folders(order.place);
    let identity = find_user(&spec.user, &spec.confinement.groups)?;
    let is_operation = files::is_operation(spec);
    if !is_operation {
        enter_directory(&spec.cwd, spec.make_cwd)?;
    }
    set_limits(order.place, &confinement)?;
    become_user(order.place, &confinement, &identity)?;
    if is_operation {
        files::prepare();
        let request = spec.argv.get(1).map(Vec::as_slice).unwrap_or_default();
        let work = files::begin(request, watching)?;
        report_started(order);
        exit(files::finish(work));
    }

    let mut environment = Environment::new(spec.env.clone());
    environment.set_default(b"PATH", DEFAULT_PATH);
    environment.set_default(b"HOSTNAME", order.hostname.as_bytes());
    environment.set_default(b"HOME", &identity.home);
    if spec.tty.is_some() {
        environment.set_default(b"TERM", b"xterm");
    }

    let nul = |what: &str| {
        let message = format!("{what} has a NUL byte");
        move |_: NulError| failed(StartFailure::Other, message, None)
    };
    let path = environment.get(b"PATH").unwrap_or_default();
    let (name, file) = program::find_either(spec, path)?;
    let argv: Vec<CString> = std::iter::once(name)
        .chain(spec.argv.iter().skip(1).map(Vec::as_slice))
        .map(CString::new)
        .collect::<Result<_, _>>()
        .map_err(nul("an argument"))?;
    let envp = environment
        .to_strings()
        .map_err(nul("an environment variable"))?;
    confinement::restrict(kernel, &confinement)
        .map_err(|errno| other("restrict system calls", errno))?;
    let errno = execute(&file, &argv, &envp);
    Err(program::explain(&file, errno))
}

/// Has the servers of folders of the host outdate all that has changed there, so that the command sees
/// what was changed before it was started. Fails if the process may not do that.
pub fn see_folders(place: &Place) -> rustix::io::Result<()> {
    let Place::Namespace { folders, .. } = place else {
        return Ok(());
    };
    for folder in folders {
        // By its path in the sandbox, which may lead elsewhere by now, or nowhere.
        let seen = statx(
            CWD,
            folder.as_str(),
            AtFlags::STATX_FORCE_SYNC,
            StatxFlags::BASIC_STATS,
        );
        if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = seen {
            return Err(errno);
        }
    }
    Ok(())
}

/// Takes on the limits of a command, before [`become_user`].
pub fn set_limits(place: &Place, confinement: &Confinement) -> Result<(), StartFailed> {
    if matches!(place, Place::Namespace { .. }) {
        set_usual_limits(place.kernel()).map_err(|errno| other("set resource limits", errno))?;
        set_ulimits(&confinement.ulimits)?;
    }
    Ok(())
}

/// Drops the capabilities that a command has not, and switches to its user.
pub fn become_user(
    place: &Place,
    confinement: &Confinement,
    identity: &Identity,
) -> Result<(), StartFailed> {
    if matches!(place, Place::Namespace { .. }) {
        bound_capabilities(confinement).map_err(|errno| other("drop capabilities", errno))?;
    }
    let may_switch =
        matches!(place, Place::Namespace { .. }) || rustix::process::geteuid().is_root();
    if may_switch {
        if has_one_user() && (identity.uid, identity.gid) != (0, 0) {
            let message = "switch user: root is the only user here (subordinate IDs of the user outside \
                           would give others)";
            return Err(failed(StartFailure::Other, message.to_owned(), None));
        }
        switch_user(identity).map_err(|errno| other("switch user", errno))?;
    }
    drop_capabilities(confinement).map_err(|errno| other("drop capabilities", errno))
}

/// Returns whether the command is the agent's own, and no program.
pub fn is_own(spec: &Exec) -> bool {
    is_list(spec) || is_flush(spec) || files::is_operation(spec) || connect::is_connection(spec)
}

/// Returns whether the command is the agent's list of processes.
fn is_list(spec: &Exec) -> bool {
    spec.argv.first().is_some_and(|name| name == PROCESSES)
}

/// Returns whether the command is the agent's flush of the sandbox's root.
fn is_flush(spec: &Exec) -> bool {
    spec.argv.first().is_some_and(|name| name == FLUSH)
}

/// Has the kernel write what it has cached of the sandbox's root, and exits.
fn flush(order: &SpawnRequest<'_>) -> ! {
    report_started(order);
    match File::open("/").and_then(|root| Ok(syncfs(root)?)) {
        Ok(()) => exit(0),
        Err(_) => exit(1),
    }
}

/// Writes the list of processes, and exits.
fn list_processes(order: &SpawnRequest<'_>, own: i32) -> ! {
    report_started(order);
    let hidden = [&[own], order.kept].concat();
    match processes::write(&hidden, &mut io::stdout()) {
        Ok(()) => exit(0),
        Err(_) => exit(1),
    }
}

/// Ends the report, which says that the command runs.
fn report_started(order: &SpawnRequest<'_>) {
    // SAFETY: this process never returns, so the report is not closed a second time.
    unsafe { rustix::io::close(order.report.as_raw_fd()) };
}

/// Creates the failure of a step, with the kernel's error.
pub fn other(what: &str, errno: Errno) -> StartFailed {
    let message = format!("{what}: {}", describe(errno));
    failed(StartFailure::Other, message, Some(errno))
}

/// Makes the command's ends descriptors 0, 1 and 2, and closes all others but the report, and those for watches.
fn take_streams(order: &SpawnRequest<'_>, watching: Option<&Watching>) -> rustix::io::Result<()> {
    dup2_stdin(&order.stdio.stdin)?;
    dup2_stdout(&order.stdio.stdout)?;
    dup2_stderr(&order.stdio.stderr)?;
    let watching = watching.iter().flat_map(|watching| watching.descriptors());
    let kept = watching.map(|kept| kept.as_raw_fd());
    close_others(
        std::iter::once(order.report.as_raw_fd())
            .chain(kept)
            .collect(),
    )
}

/// Resolves a user in the sandbox's files.
pub fn find_user(spec: &str, groups: &[String]) -> Result<Identity, StartFailed> {
    let read = |path: &str| {
        read_accounts(path).map_err(|error| {
            let errno = Errno::from_io_error(&error);
            failed(StartFailure::NoSuchUser, format!("{path}: {error}"), errno)
        })
    };
    let (passwd, group) = (read("/etc/passwd")?, read("/etc/group")?);
    let unknown = |unknown: Unknown| failed(StartFailure::NoSuchUser, unknown.0, None);
    let mut identity = user::resolve(spec, &passwd, &group).map_err(unknown)?;
    user::add_groups(&mut identity, groups, &group).map_err(unknown)?;
    Ok(identity)
}

/// Reads a file of accounts; a missing file counts as empty, as in Docker.
fn read_accounts(path: &str) -> io::Result<Vec<u8>> {
    let opened = File::options()
        .read(true)
        // Opening a FIFO must not block.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(Errno::INVAL.into());
    }
    let mut contents = Vec::new();
    file.take(MAX_ACCOUNTS + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MAX_ACCOUNTS {
        return Err(Errno::FBIG.into());
    }
    Ok(contents)
}

/// Changes to the working directory, which is created if `make` (0755, owned by root) as `docker run` does, and must be
/// there otherwise, as for `docker exec`.
///
/// Runs as root: the directory may be one that the user could not enter.
fn enter_directory(cwd: &[u8], make: bool) -> Result<(), StartFailed> {
    let bad = |message: String, errno| failed(StartFailure::BadWorkdir, message, errno);
    if !cwd.is_empty() && !cwd.starts_with(b"/") {
        return Err(bad(
            format!("working directory {}: not an absolute path", shown(cwd)),
            None,
        ));
    }
    let path = clean(Path::new(OsStr::from_bytes(cwd)));
    let refuse = |error: io::Error| {
        let errno = Errno::from_io_error(&error);
        let words = errno.map_or_else(|| error.to_string(), describe);
        bad(format!("working directory {}: {words}", shown(cwd)), errno)
    };
    match std::env::set_current_dir(&path) {
        Err(error) if make && error.kind() == io::ErrorKind::NotFound => {
            let made = || -> rustix::io::Result<()> {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = rustix::fs::open("/", flags, Mode::empty())?;
                let directory = Root::new(root).made_directory(path.as_os_str().as_bytes())?;
                rustix::process::fchdir(directory)
            };
            made().map_err(|errno| refuse(errno.into()))
        }
        result => result.map_err(refuse),
    }
}

/// Removes `.` and `..` from the path, without following links, as Docker does (Go's
/// `filepath.Clean`).
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

fn set_usual_limits(kernel: Kernel) -> rustix::io::Result<()> {
    if kernel == Kernel::Hosts {
        // Hard limits can only be lowered there.
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        let least =
            |limit: Option<u64>| limit.map(|limit| most.map_or(limit, |most| most.min(limit)));
        let files = Rlimit {
            current: least(OPEN_FILES.current),
            maximum: least(OPEN_FILES.maximum),
        };
        return rustix::process::setrlimit(Resource::Nofile, files);
    }
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    rustix::process::setrlimit(Resource::Nofile, OPEN_FILES)?;
    // The kernel's default depends on the machine's memory, which limits the number of processes
    // sufficiently.
    rustix::process::setrlimit(Resource::Nproc, unlimited)
}

/// Switches to the user. Root keeps all capabilities unless they are taken away: the sandbox is alone
/// in its machine, so root can't affect others. Other users have none, as usual.
fn switch_user(identity: &Identity) -> rustix::io::Result<()> {
    let uid = Uid::from_raw(identity.uid);
    let gid = Gid::from_raw(identity.gid);
    give_streams(uid)?;
    if has_one_user() {
        // The kernel lets none be left there.
        return Ok(());
    }
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Makes the user the owner of the standard streams, so that opening `/dev/stdout` works.
/// `/dev/null` is shared and keeps its owner.
fn give_streams(uid: Uid) -> rustix::io::Result<()> {
    use rustix::fs::FileType;
    use rustix::stdio::{stderr, stdin, stdout};

    let streams = [stdin(), stdout(), stderr()];
    for stream in streams {
        let stat = fstat(stream)?;
        let terminal = rustix::termios::isatty(stream);
        let pipe = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        if (terminal || pipe) && stat.st_uid != uid.as_raw() {
            rustix::fs::fchown(stream, Some(uid), None)?;
        }
    }
    Ok(())
}

/// Calls execve(2). Returns only its error.
fn execute(file: &CString, argv: &[CString], envp: &[CString]) -> Errno {
    let argv = pointers(argv);
    let envp = pointers(envp);
    // SAFETY: both arrays end with a null pointer, and the strings that they point
    // to outlive the call.
    unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    last_errno()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_directories_are_cleaned_as_text() {
        for (path, cleaned) in [
            ("", "/"),
            ("/", "/"),
            ("/a/b/", "/a/b"),
            ("/a/../b/./c", "/b/c"),
            ("/../..", "/"),
        ] {
            assert_eq!(clean(Path::new(path)), Path::new(cleaned));
        }
    }
}
