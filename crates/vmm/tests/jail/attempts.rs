//! The attempts, each by raw system calls, as hostile code would make them.

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use micabox_jail::{self as jail, CAUGHT};
use micabox_vmm::kvm::Thread;

/// The first argument of a process that makes an attempt.
const ATTEMPT: &str = "--attempt";

/// Exit code of an attempt that worked.
const REACHED: i32 = 0;
/// Exit code of a process that could not be jailed.
const NO_JAIL: i32 = 99;

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Reached,
    Refused(i32),
    Caught,
}
use Outcome::{Caught, Reached, Refused};

/// Something to reach.
struct Attempt {
    name: &'static str,
    /// Makes the system calls; returns the last one's result. Gets what the parent passes on.
    make: fn(&Target) -> i64,
    /// The outcomes in the jail without a filter; the first is that of a kernel with a recent
    /// Landlock.
    walls: &'static [Outcome],
    /// The outcome with the filter of the thread that may do most.
    filter: Outcome,
}

impl Attempt {
    /// Returns the outcome before there are threads, while a saved machine's state is read.
    fn building(&self) -> Outcome {
        match self.name {
            // This thread creates the machine.
            "ask_kvm_for_another_machine" | "register_memory_with_userfaultfd" => {
                Refused(libc::ENOTTY)
            }
            _ => self.filter,
        }
    }
}

/// Parts of the host that attempts aim at.
struct Target {
    pid: libc::pid_t,
    port: u16,
    pipe: libc::c_int,
}

const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "write_to_what_is_open",
        make: |target| write(target.pipe, b"x"),
        walls: &[Reached],
        filter: Reached,
    },
    Attempt {
        name: "map_memory",
        make: |_| mmap(libc::PROT_READ | libc::PROT_WRITE),
        walls: &[Reached],
        filter: Reached,
    },
    Attempt {
        name: "map_code",
        make: |_| mmap(libc::PROT_READ | libc::PROT_EXEC),
        walls: &[Reached],
        filter: Caught,
    },
    Attempt {
        name: "open_a_file",
        make: |_| open(c"/etc/passwd", libc::O_RDONLY),
        walls: &[Refused(libc::ENOENT)],
        filter: Caught,
    },
    Attempt {
        name: "open_proc",
        make: |_| open(c"/proc/self/mem", libc::O_RDWR),
        walls: &[Refused(libc::ENOENT)],
        filter: Caught,
    },
    Attempt {
        name: "open_kvm",
        make: |_| open(c"/dev/kvm", libc::O_RDWR),
        walls: &[Refused(libc::ENOENT)],
        filter: Caught,
    },
    Attempt {
        name: "leave_by_dots",
        make: |_| open(c"../../../../etc/passwd", libc::O_RDONLY),
        walls: &[Refused(libc::ENOENT)],
        filter: Caught,
    },
    Attempt {
        name: "list_the_root",
        make: |_| open(c"/", libc::O_RDONLY | libc::O_DIRECTORY),
        walls: &[Refused(libc::EACCES), Reached],
        filter: Caught,
    },
    Attempt {
        name: "create_a_file",
        make: |_| open(c"/x", libc::O_WRONLY | libc::O_CREAT),
        walls: &[Refused(libc::EROFS)],
        filter: Caught,
    },
    Attempt {
        name: "make_a_device",
        // SAFETY: a path and numbers.
        make: |_| unsafe { syscall(libc::SYS_mknod, &[path(c"/m"), 0o020_666, 0x101]) },
        walls: &[Refused(libc::EROFS)],
        filter: Caught,
    },
    Attempt {
        name: "mount",
        make: |_| {
            let arguments = [path(c"none"), path(c"/"), path(c"tmpfs"), 0, 0];
            // SAFETY: paths that live and a null pointer, which is allowed.
            unsafe { syscall(libc::SYS_mount, &arguments) }
        },
        walls: &[Refused(libc::EPERM)],
        filter: Caught,
    },
    Attempt {
        name: "kill_the_parent",
        // SAFETY: numbers.
        make: |target| unsafe { syscall(libc::SYS_kill, &[target.pid.into(), 9]) },
        walls: &[Refused(libc::ESRCH)],
        filter: Caught,
    },
    Attempt {
        name: "trace_the_parent",
        // SAFETY: numbers; PTRACE_ATTACH uses no memory.
        make: |target| unsafe { syscall(libc::SYS_ptrace, &[16, target.pid.into(), 0, 0]) },
        walls: &[Refused(libc::ESRCH)],
        filter: Caught,
    },
    Attempt {
        name: "connect_to_the_hosts_loopback",
        make: |target| connect(target.port),
        walls: &[Refused(libc::EACCES), Refused(libc::ENETUNREACH)],
        filter: Caught,
    },
    Attempt {
        name: "send_to_the_network",
        make: send_datagram,
        walls: &[Refused(libc::ENETUNREACH)],
        filter: Caught,
    },
    Attempt {
        name: "sniff_the_network",
        make: |_| socket(libc::AF_PACKET, libc::SOCK_RAW),
        walls: &[Refused(libc::EPERM)],
        filter: Caught,
    },
    Attempt {
        name: "rename_the_host",
        // SAFETY: bytes that live, and their number.
        make: |_| unsafe { syscall(libc::SYS_sethostname, &[path(c"x"), 1]) },
        walls: &[Refused(libc::EPERM)],
        filter: Caught,
    },
    Attempt {
        name: "become_root",
        // SAFETY: a number.
        make: |_| unsafe { syscall(libc::SYS_setuid, &[0]) },
        walls: &[Refused(libc::EINVAL)],
        filter: Caught,
    },
    Attempt {
        name: "become_nobody_in_a_new_user_namespace",
        // SAFETY: a number.
        make: |_| unsafe { syscall(libc::SYS_unshare, &[libc::CLONE_NEWUSER.into()]) },
        // The new namespace has no power over the walls, which were made before.
        walls: &[Reached],
        filter: Caught,
    },
    Attempt {
        name: "execute",
        make: |_| {
            let arguments = [path(c"/bin/true"), 0, 0];
            // SAFETY: a path and null pointers, which Linux takes as empty lists.
            unsafe { syscall(libc::SYS_execve, &arguments) }
        },
        walls: &[Refused(libc::ENOENT)],
        filter: Caught,
    },
    Attempt {
        name: "start_a_process",
        // SAFETY: numbers; the child, if there is one, ends as this process does.
        make: |_| unsafe { syscall(libc::SYS_fork, &[]) },
        walls: &[Reached],
        filter: Caught,
    },
    Attempt {
        name: "make_an_io_uring",
        // SAFETY: a null pointer, which the kernel refuses if it allows the call.
        make: |_| unsafe { syscall(libc::SYS_io_uring_setup, &[1, 0]) },
        walls: &[Refused(libc::EFAULT)],
        filter: Caught,
    },
    Attempt {
        name: "ask_kvm_for_another_machine",
        // SAFETY: numbers; KVM_CREATE_VM on what is not KVM.
        make: |target| unsafe { syscall(libc::SYS_ioctl, &[target.pipe.into(), 0xae01, 0]) },
        walls: &[Refused(libc::ENOTTY)],
        filter: Caught,
    },
    Attempt {
        name: "register_memory_with_userfaultfd",
        // SAFETY: numbers; UFFDIO_REGISTER on what is no userfaultfd.
        make: |target| unsafe { syscall(libc::SYS_ioctl, &[target.pipe.into(), 0xc020_aa00, 0]) },
        walls: &[Refused(libc::ENOTTY)],
        filter: Caught,
    },
];

/// Makes a system call; returns its result, or its negated error.
///
/// # Safety
/// The call's own requirements.
unsafe fn syscall(number: libc::c_long, arguments: &[i64]) -> i64 {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
    // SAFETY: as the caller guarantees.
    let result = unsafe {
        libc::syscall(
            number,
            argument(0),
            argument(1),
            argument(2),
            argument(3),
            argument(4),
            argument(5),
        )
    };
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()),
        result => result,
    }
}

fn path(path: &'static std::ffi::CStr) -> i64 {
    path.as_ptr() as i64
}

fn open(name: &'static std::ffi::CStr, flags: libc::c_int) -> i64 {
    let arguments = [libc::AT_FDCWD.into(), path(name), flags.into(), 0o600];
    // SAFETY: a path that lives.
    unsafe { syscall(libc::SYS_openat, &arguments) }
}

fn write(descriptor: libc::c_int, bytes: &[u8]) -> i64 {
    let arguments = [descriptor.into(), bytes.as_ptr() as i64, bytes.len() as i64];
    // SAFETY: bytes that live.
    unsafe { syscall(libc::SYS_write, &arguments) }
}

fn mmap(protection: libc::c_int) -> i64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    unsafe {
        syscall(
            libc::SYS_mmap,
            &[0, 4096, protection.into(), flags.into(), -1, 0],
        )
    }
}

fn socket(family: libc::c_int, kind: libc::c_int) -> i64 {
    // SAFETY: numbers.
    unsafe { syscall(libc::SYS_socket, &[family.into(), kind.into(), 0]) }
}

/// Encodes an IPv4 address as `sockaddr_in`.
fn address(host: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&host);
    bytes
}

fn connect(port: u16) -> i64 {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
    let address = address([127, 0, 0, 1], port);
    // SAFETY: an address that lives, and its length.
    unsafe { syscall(libc::SYS_connect, &[socket, address.as_ptr() as i64, 16]) }
}

fn send_datagram(_: &Target) -> i64 {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM);
    let address = address([192, 0, 2, 1], 53);
    let byte = [0_u8];
    let arguments = [
        socket,
        byte.as_ptr() as i64,
        1,
        0,
        address.as_ptr() as i64,
        16,
    ];
    // SAFETY: a byte and an address that live.
    unsafe { syscall(libc::SYS_sendto, &arguments) }
}

/// Enters the jail and makes an attempt, in a process of its own.
fn attempt(mut arguments: impl Iterator<Item = String>) -> i32 {
    let mut next = || arguments.next().unwrap();
    let name = next();
    let thread = match &*next() {
        "Builder" => Some(Thread::Builder),
        "Devices" => Some(Thread::Devices),
        "Pager" => Some(Thread::Pager),
        _ => None,
    };
    let mut number = || next().parse::<i32>().unwrap();
    let target = Target {
        pid: number(),
        port: number().try_into().unwrap(),
        pipe: number(),
    };
    let attempt = ATTEMPTS.iter().find(|known| known.name == name).unwrap();
    if let Err(error) = jail::enter() {
        eprintln!("{error}");
        return NO_JAIL;
    }
    if let Some(thread) = thread
        && let Err(error) = thread.restrict()
    {
        eprintln!("{error}");
        return NO_JAIL;
    }
    match (attempt.make)(&target) {
        result if result < 0 => i32::try_from(-result).unwrap(),
        _ => REACHED,
    }
}

/// Returns the outcome of an attempt.
fn outcome(attempt: &Attempt, filter: Option<Thread>) -> Result<Outcome, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut ours, theirs) = UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let child = Command::new(std::env::current_exe()?)
        .args([ATTEMPT, attempt.name])
        .arg(filter.map_or_else(String::new, |thread| format!("{thread:?}")))
        .arg(std::process::id().to_string())
        .arg(listener.local_addr()?.port().to_string())
        .arg(theirs.as_raw_fd().to_string())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(theirs);
    let output = child.wait_with_output()?;
    let mut written = Vec::new();
    ours.read_to_end(&mut written)?;
    let messages = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(NO_JAIL) => Err(messages.into_owned().into()),
        Some(CAUGHT) => {
            assert!(messages.contains("made system call"), "{messages}");
            Ok(Caught)
        }
        Some(REACHED) => Ok(Reached),
        Some(errno) => Ok(Refused(errno)),
        None => Err(format!("signal {:?}: {messages}", output.status.signal()).into()),
    }
}

/// A jailed process dies with its owner, although the keeper is in between.
fn the_jailed_die_with_their_keeper() -> Result<(), Failed> {
    let (mut ours, theirs) = UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([ATTEMPT, "wait", &theirs.as_raw_fd().to_string()])
        .spawn()?;
    drop(theirs);
    let mut byte = [0];
    ours.read_exact(&mut byte)?;
    child.kill()?;
    child.wait()?;
    // The end of the stream: no process has the other end any more.
    assert_eq!(ours.read(&mut byte)?, 0);
    Ok(())
}

fn wait_for_ever(descriptor: &str) -> i32 {
    if jail::enter().is_err() {
        return NO_JAIL;
    }
    write(descriptor.parse().unwrap(), b"x");
    loop {
        std::thread::park();
    }
}

pub fn run() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(ATTEMPT) {
        let code = match &*arguments.next().unwrap() {
            "wait" => wait_for_ever(&arguments.next().unwrap()),
            name => attempt(std::iter::once(name.to_owned()).chain(arguments)),
        };
        std::process::exit(code);
    }
    let mut trials = vec![Trial::test(
        "the_jailed_die_with_their_keeper",
        the_jailed_die_with_their_keeper,
    )];
    for attempt in ATTEMPTS {
        trials.push(Trial::test(attempt.name, || {
            let walls = outcome(attempt, None)?;
            assert!(
                attempt.walls.contains(&walls),
                "without a filter: {walls:?}"
            );
            let filtered = |thread| outcome(attempt, Some(thread));
            assert_eq!(filtered(Thread::Builder)?, attempt.building(), "before");
            assert_eq!(
                filtered(Thread::Devices)?,
                attempt.filter,
                "with the filter"
            );
            assert_eq!(filtered(Thread::Pager)?, attempt.filter, "of the pager");
            Ok(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
