//! Tests what a parser can reach: attempts by raw system calls, as code in a hostile file would
//! make them.

use std::ffi::CStr;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};

use libtest_mimic::{Failed, Trial};
use micabox_jail::{Call, CallError, Death, Limits, Worker};
use serde::{Deserialize, Serialize};

/// An attempt, by its index in [`ATTEMPTS`].
#[derive(Serialize, Deserialize)]
pub struct Attempt {
    index: usize,
    owner: u32,
    port: u16,
}

impl Call for Attempt {
    const KIND: &'static str = "attempt";
    type Reply = i64;
    type Error = String;

    fn run(self, files: Vec<OwnedFd>) -> Result<i64, String> {
        let (_, make, _) = ATTEMPTS[self.index];
        Ok(make(&self, files[0].as_raw_fd().into()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The call was made.
    Made,
    /// The call was made and failed with this error.
    Fails(i32),
    /// The filter ended the process.
    Caught,
}
use Outcome::{Caught, Fails, Made};

type Make = fn(&Attempt, i64) -> i64;

const ATTEMPTS: &[(&str, Make, Outcome)] = &[
    (
        "write_to_its_file",
        |_, file| call(libc::SYS_pwrite64, [file, bytes(), 1, 0]),
        Made,
    ),
    (
        "read_its_file",
        |_, file| call(libc::SYS_pread64, [file, room(), 1, 0]),
        Made,
    ),
    (
        "learn_about_its_file",
        |_, file| call(libc::SYS_fstat, [file, room()]),
        Made,
    ),
    (
        "map_its_file",
        |_, file| map(libc::PROT_READ, libc::MAP_SHARED, file),
        Made,
    ),
    (
        "map_memory",
        |_, _| map(libc::PROT_WRITE, ANONYMOUS, -1),
        Made,
    ),
    (
        "map_code",
        |_, _| map(libc::PROT_EXEC, ANONYMOUS, -1),
        Caught,
    ),
    (
        "make_code_of_memory",
        |_, _| {
            let at = map(libc::PROT_WRITE, ANONYMOUS, -1);
            call(libc::SYS_mprotect, [at, 4096, libc::PROT_EXEC.into()])
        },
        Caught,
    ),
    ("give_back_a_threads_memory", |_, _| give_back(), Made),
    (
        "stat_by_path",
        |_, _| stat(c"/etc/passwd"),
        Fails(libc::ENOENT),
    ),
    (
        "open_a_file",
        |_, _| open(c"/etc/passwd", libc::O_RDONLY),
        Caught,
    ),
    (
        "open_proc",
        |_, _| open(c"/proc/self/mem", libc::O_RDWR),
        Caught,
    ),
    (
        "open_by_its_number",
        |_, file| open_at(file, c"", libc::O_RDWR),
        Caught,
    ),
    (
        "open2",
        |_, _| call(libc::SYS_openat2, [AT, path(c"/etc/passwd"), room(), 24]),
        Caught,
    ),
    (
        "remove_a_file",
        |_, _| call(libc::SYS_unlinkat, [AT, path(c"/x"), 0]),
        Caught,
    ),
    (
        "read_a_link",
        |_, _| call(libc::SYS_readlinkat, [AT, path(c"/x"), room(), 1]),
        Caught,
    ),
    (
        "change_a_mode",
        |_, file| call(libc::SYS_fchmod, [file, 0o4755]),
        Caught,
    ),
    (
        "change_an_owner",
        |_, file| call(libc::SYS_fchown, [file, 0, 0]),
        Caught,
    ),
    (
        "set_an_attribute",
        |_, file| call(libc::SYS_fsetxattr, [file, path(c"user.x"), bytes(), 1, 0]),
        Caught,
    ),
    (
        "lock_its_file",
        |_, file| call(libc::SYS_flock, [file, 2]),
        Caught,
    ),
    (
        "control_its_file",
        |_, file| call(libc::SYS_ioctl, [file, 0x5401, room()]),
        Caught,
    ),
    (
        "have_its_file_appended_to",
        |_, file| {
            call(
                libc::SYS_fcntl,
                [file, libc::F_SETFL.into(), libc::O_APPEND.into()],
            )
        },
        Caught,
    ),
    (
        "connect_to_the_hosts_loopback",
        |attempt, _| connect(attempt.port),
        Caught,
    ),
    (
        "make_a_socket_pair",
        |_, _| call(libc::SYS_socketpair, [1, 1, 0, room()]),
        Caught,
    ),
    (
        "send_a_message",
        |_, _| call(libc::SYS_sendmsg, [2, room(), 0]),
        Caught,
    ),
    (
        "execute",
        |_, _| call(libc::SYS_execve, [path(c"/bin/true"), 0, 0]),
        Caught,
    ),
    (
        "execute_at",
        |_, file| call(libc::SYS_execveat, [file, path(c""), 0, 0, 0x1000]),
        Caught,
    ),
    (
        "fork",
        |_, _| call(libc::SYS_clone, [libc::SIGCHLD.into()]),
        Caught,
    ),
    (
        "fork_by_clone3",
        |_, _| call(libc::SYS_clone3, [room(), 88]),
        Fails(libc::ENOSYS),
    ),
    (
        "make_a_namespace_of_a_thread",
        |_, _| {
            let thread = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND;
            call(libc::SYS_clone, [(thread | libc::CLONE_NEWNET).into()])
        },
        Caught,
    ),
    (
        "make_a_namespace",
        |_, _| call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into()]),
        Caught,
    ),
    (
        "kill_its_owner",
        |attempt, _| call(libc::SYS_kill, [attempt.owner.into(), 9]),
        Caught,
    ),
    (
        "kill_its_owners_thread",
        |attempt, _| {
            call(
                libc::SYS_tgkill,
                [attempt.owner.into(), attempt.owner.into(), 9],
            )
        },
        Caught,
    ),
    (
        "trace_its_owner",
        |attempt, _| call(libc::SYS_ptrace, [16, attempt.owner.into()]),
        Caught,
    ),
    (
        "read_its_owners_memory",
        |attempt, _| {
            call(
                libc::SYS_process_vm_readv,
                [attempt.owner.into(), room(), 1, room(), 1],
            )
        },
        Caught,
    ),
    (
        "be_dumpable_again",
        |_, _| call(libc::SYS_prctl, [4, 1]),
        Caught,
    ),
    (
        "raise_a_limit",
        |_, _| call(libc::SYS_prlimit64, [0, 1, room()]),
        Caught,
    ),
    (
        "mount",
        |_, _| call(libc::SYS_mount, [path(c"x"), path(c"/"), path(c"tmpfs")]),
        Caught,
    ),
    (
        "make_an_io_uring",
        |_, _| call(libc::SYS_io_uring_setup, [1, room()]),
        Caught,
    ),
    (
        "make_a_bpf_program",
        |_, _| call(libc::SYS_bpf, [0, room(), 1]),
        Caught,
    ),
    (
        "splice",
        |_, file| call(libc::SYS_splice, [file, 0, 2, 0, 1]),
        Fails(libc::ENOSYS),
    ),
];

const AT: i64 = libc::AT_FDCWD as i64;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// A system call's result, or its negated error.
fn call<const N: usize>(number: libc::c_long, arguments: [i64; N]) -> i64 {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
    // SAFETY: the calls above that are made get numbers, and pointers to memory that lives; others
    // end the process.
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

/// Returns the address of writable, zeroed memory of the worker.
fn room() -> i64 {
    Box::leak(Box::new([0_u8; 4096])).as_mut_ptr() as i64
}

fn bytes() -> i64 {
    b"y".as_ptr() as i64
}

fn path(path: &'static CStr) -> i64 {
    path.as_ptr() as i64
}

fn open(name: &'static CStr, flags: libc::c_int) -> i64 {
    open_at(AT, name, flags)
}

fn open_at(directory: i64, name: &'static CStr, flags: libc::c_int) -> i64 {
    call(libc::SYS_openat, [directory, path(name), flags.into(), 0])
}

fn stat(name: &'static CStr) -> i64 {
    call(libc::SYS_newfstatat, [AT, path(name), room(), 0])
}

fn map(protection: libc::c_int, flags: libc::c_int, file: i64) -> i64 {
    call(
        libc::SYS_mmap,
        [0, 4096, protection.into(), flags.into(), file, 0],
    )
}

/// Frees what is at the end of a thread's arena, which the allocator then gives back.
fn give_back() -> i64 {
    let thread = std::thread::spawn(|| drop([(); 8].map(|()| vec![1_u8; 100 << 10])));
    thread.join().map_or(-1, |()| 0)
}

fn connect(port: u16) -> i64 {
    let socket = call(libc::SYS_socket, [2, 1, 0]);
    let mut address = [0_u8; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    call(libc::SYS_connect, [socket, address.as_ptr() as i64, 16])
}

fn outcome(index: usize) -> Result<Outcome, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let file = tempfile::tempfile()?;
    file.set_len(4096)?;
    let attempt = Attempt {
        index,
        owner: std::process::id(),
        port: listener.local_addr()?.port(),
    };
    let limits = Limits {
        file_size: 1 << 20,
        ..Limits::default()
    };
    let worker = Worker::start(&attempt, vec![file.into()], &limits)?;
    match worker.wait() {
        Ok(result) if result < 0 => Ok(Fails(i32::try_from(-result)?)),
        Ok(_) => Ok(Made),
        Err(CallError::Died {
            death: Death::ForbiddenCall(text),
            ..
        }) => {
            assert!(text.contains("made system call"), "{text}");
            Ok(Caught)
        }
        Err(error) => Err(error.into()),
    }
}

pub fn trials() -> Vec<Trial> {
    let trial = |(index, (name, _, expected)): (usize, &'static (&str, Make, Outcome))| {
        Trial::test(*name, move || {
            assert_eq!(outcome(index)?, *expected);
            Ok(())
        })
    };
    ATTEMPTS.iter().enumerate().map(trial).collect()
}
