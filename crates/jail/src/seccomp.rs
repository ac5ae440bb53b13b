//! Seccomp filters: a thread may make the listed system calls and no others.
//!
//! A call that isn't listed ends the process, which first writes the call's number to stderr: such
//! a call is either a mistake in a list or an attacker's.

#![allow(unsafe_code)]

use std::io;

use libc::{sock_filter, sock_fprog};
use micabox_seccomp::{Filter as Rules, Instruction, Rule, Test, Verdict};

use crate::walls::{Error, step};

/// The system calls that a thread may make once the filter is installed.
#[derive(Clone, Debug)]
pub struct Filter(Rules);

/// Fails a call as an old kernel does.
const UNKNOWN: Rule = Rule::Always(Verdict::Fail(libc::ENOSYS as u16));

impl Filter {
    /// Allows `calls` with all arguments, and the calls to manage memory, except for new executable
    /// code, and to query descriptors.
    pub fn allowing(calls: impl IntoIterator<Item = libc::c_long>) -> Self {
        let no_code =
            |filter: Self, call| filter.allow_if(call, 2, libc::PROT_EXEC.unsigned_abs(), &[0]);
        let mut filter = Self(Rules::new(Verdict::Trap, Verdict::KillProcess));
        calls.into_iter().for_each(|call| filter.allow(call));
        let filter = no_code(filter, libc::SYS_mmap);
        let filter = no_code(filter, libc::SYS_mprotect);
        // The standard library checks that a descriptor that it closes was open.
        let looks = [libc::F_GETFD, libc::F_GETFL].map(libc::c_int::unsigned_abs);
        filter.allow_if(libc::SYS_fcntl, 1, u32::MAX, &looks)
    }

    fn allow(&mut self, number: libc::c_long) {
        let number = number as u32; // below 1,000
        self.0.rules.insert(number, Rule::Always(Verdict::Allow));
    }

    /// Also allows a call if the lower half of an argument, counted from 0, has one of these values
    /// where `mask` has ones.
    #[must_use]
    pub fn allow_if(
        mut self,
        number: libc::c_long,
        argument: u32,
        mask: u32,
        values: &[u32],
    ) -> Self {
        let number = number as u32; // below 1,000
        let tests = values.iter().map(|value| Test {
            argument,
            mask,
            value: *value,
        });
        match self.0.rules.get_mut(&number) {
            Some(Rule::If { tests: all, .. }) => all.extend(tests),
            // The call is already allowed with all arguments, or must fail as unknown.
            Some(Rule::Always(_)) => {}
            None => {
                let rule = Rule::If {
                    tests: tests.collect(),
                    then: Verdict::Allow,
                    otherwise: Verdict::Trap,
                };
                self.0.rules.insert(number, rule);
            }
        }
        self
    }

    /// Allows starting threads, but no processes or namespaces.
    #[must_use]
    pub fn with_threads(mut self) -> Self {
        let number = |value: libc::c_int| value.cast_unsigned();
        // The lowest byte is a signal.
        let threads = number(libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND);
        let namespaces = number(
            libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWCGROUP,
        );
        let calls = [
            libc::SYS_rseq,
            libc::SYS_sched_getaffinity,
            libc::SYS_set_robust_list,
            libc::SYS_sigaltstack,
        ];
        for call in calls {
            self.allow(call);
        }
        self.allow_if(libc::SYS_clone, 0, threads | namespaces, &[threads])
            // A thread's name.
            .allow_if(libc::SYS_prctl, 0, u32::MAX, &[number(libc::PR_SET_NAME)])
            // The flags of `clone3` are in memory, where a filter can't read them: without
            // `clone3`, libraries use `clone`.
            .without(&[libc::SYS_clone3])
    }

    /// Makes these calls fail as if the kernel didn't have them (`ENOSYS`), for a library that then
    /// uses others.
    #[must_use]
    pub fn without(mut self, calls: &[libc::c_long]) -> Self {
        let calls = calls.iter().map(|number| (*number as u32, UNKNOWN)); // below 1,000
        self.0.rules.extend(calls);
        self
    }

    /// Restricts the calling thread, and the threads that it starts from now on, for good.
    ///
    /// # Errors
    /// [`Error::Step`] where the kernel has no seccomp filters.
    pub fn restrict(self) -> Result<(), Error> {
        let too_long = |error| step("making a filter")(io::Error::other(error));
        let program = self.0.program().map_err(too_long)?;
        let kernels = |Instruction { code, jt, jf, k }| sock_filter { code, jt, jf, k };
        let mut program: Vec<_> = program.into_iter().map(kernels).collect();
        on_signal(libc::SIGSYS, caught).map_err(step("watching the filter"))?;
        install(&mut program).map_err(step("filtering system calls"))
    }
}

/// Installs a program as a filter of the calling thread, which can't gain privileges afterwards: without
/// `CAP_SYS_ADMIN` the kernel takes filters of such threads only.
fn install(program: &mut [sock_filter]) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel reads the program, which lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The exit code of a process that made a call that isn't allowed: a shell's code for SIGSYS.
pub const CAUGHT: i32 = 128 + libc::SIGSYS;

/// A signal handler.
pub(crate) type Handler = extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void);

/// Installs `handler`, which may make system calls and nothing else, for a signal.
pub(crate) fn on_signal(signal: libc::c_int, handler: Handler) -> io::Result<()> {
    // SAFETY: plain data, valid when zero: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes only calls that a signal handler may make.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn caught(
    _signal: libc::c_int,
    info: *const libc::siginfo_t,
    _context: *const libc::c_void,
) {
    /// Index of the call's number (`_sigsys._syscall`) in `siginfo_t`, in integers.
    const CALL: usize = 6;
    // SAFETY: the kernel passes a whole structure of 128 bytes, aligned for integers.
    let call = unsafe { info.cast::<libc::c_int>().add(CALL).read() };
    if cfg!(target_env = "musl") && libc::c_long::from(call) == libc::SYS_tkill {
        // How musl's abort(3) ends a process, most often for want of memory.
        // SAFETY: ends the process immediately, as a signal handler may.
        unsafe { libc::_exit(128 + libc::SIGABRT) };
    }
    let mut digits = [b' '; 10];
    let mut rest = call.unsigned_abs();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let message: [&[u8]; 3] = [b"a jailed process made system call ", &digits, b"\n"];
    for part in message {
        // SAFETY: writes bytes that live.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process immediately, as a signal handler may.
    unsafe { libc::_exit(CAUGHT) };
}
