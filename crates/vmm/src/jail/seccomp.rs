//! The system calls that each kind of thread makes, and no others.
//!
//! A call that isn't listed ends the process, and its number is said in stderr: it is
//! either a mistake in a list or somebody who should not be here.

#![allow(unsafe_code)]

use std::io;

use kvm_bindings::{
    kvm_clock_data, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msrs,
    kvm_pit_state2, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use seccompiler::BpfProgram;

use super::filter::{self, Call, Test};
use super::{Error, step};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Runs a virtual processor.
    Processor,
    /// Serves a disk.
    Disk,
    /// Serves all other devices, and saves the machine.
    Devices,
}

/// What a processor's thread asks of KVM (`linux/kvm.h`): to run, and what it has to save
/// of the processor; to say of its clock that time has passed.
const PROCESSOR_REQUESTS: [u32; 12] = [
    request(0, 0, 0x80),
    read::<kvm_regs>(0x81),
    read::<kvm_sregs>(0x83),
    change::<kvm_msrs>(0x88),
    read::<kvm_lapic_state>(0x8e),
    read::<kvm_mp_state>(0x98),
    read::<kvm_vcpu_events>(0x9f),
    read::<kvm_debugregs>(0xa1),
    request(0, 0, 0xa3), // Get the frequency of the time stamp counter.
    read::<kvm_xsave>(0xa4),
    read::<kvm_xcrs>(0xa6),
    request(0, 0, 0xad), // The guest stood still.
];

/// What the devices' thread asks of it: what is to be saved of the machine.
const DEVICES_REQUESTS: [u32; 3] = [
    change::<kvm_irqchip>(0x62),
    read::<kvm_clock_data>(0x7c),
    read::<kvm_pit_state2>(0x9f),
];

/// `_IOC` of `asm-generic/ioctl.h`: direction, size of the argument, KVM's number.
const fn request(direction: u32, size: usize, number: u32) -> u32 {
    const KVM: u32 = 0xae;
    direction << 30 | (size as u32) << 16 | KVM << 8 | number
}

const fn read<T>(number: u32) -> u32 {
    request(2, size_of::<T>(), number)
}

const fn change<T>(number: u32) -> u32 {
    request(3, size_of::<T>(), number)
}

/// Memory, locks, time, the end; and bytes in and out of what is open.
const ALL: [libc::c_long; 31] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_poll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Waiting for the guest, and what it asks of a disk.
const DISK: [libc::c_long; 6] = [
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_preadv,
    libc::SYS_pwritev,
];

/// Waiting for several things at once, connections that come and go, a snapshot's files;
/// signals to the processors' threads, as nobody else is in their namespace.
const DEVICES: [libc::c_long; 9] = [
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_shutdown,
    libc::SYS_tgkill,
];

impl Thread {
    /// Restricts the calling thread, for good.
    ///
    /// # Errors
    /// [`Error::Step`] where the kernel has no seccomp filters.
    pub fn restrict(self) -> Result<(), Error> {
        let program = self.program().map_err(step("making a filter"))?;
        say_what_was_caught().map_err(step("watching the filter"))?;
        seccompiler::apply_filter(&program)
            .map_err(|error| step("filtering system calls")(io::Error::other(error)))
    }

    fn program(self) -> io::Result<BpfProgram> {
        let (calls, requests): (&[libc::c_long], &[u32]) = match self {
            Self::Processor => (&[], &PROCESSOR_REQUESTS),
            Self::Disk => (&DISK, &[]),
            Self::Devices => (&DEVICES, &DEVICES_REQUESTS),
        };
        let always = ALL
            .iter()
            .chain(calls)
            .map(|number| call(*number, Vec::new()));
        let mut calls: Vec<Call> = always.collect();
        let is = |argument, value| Test {
            argument,
            mask: u32::MAX,
            value,
        };
        // Without a test, all requests would be allowed.
        if !requests.is_empty() {
            let requests = requests.iter().map(|request| is(1, *request)).collect();
            calls.push(call(libc::SYS_ioctl, requests));
        }
        // The standard library looks whether what it closes was open.
        let looks = [libc::F_GETFD, libc::F_GETFL].map(|look| is(1, look.unsigned_abs()));
        calls.push(call(libc::SYS_fcntl, looks.into()));
        // No code that wasn't there from the start.
        for number in [libc::SYS_mmap, libc::SYS_mprotect] {
            let data = Test {
                argument: 2,
                mask: libc::PROT_EXEC.unsigned_abs(),
                value: 0,
            };
            calls.push(call(number, vec![data]));
        }
        filter::program(calls)
    }
}

fn call(number: libc::c_long, tests: Vec<Test>) -> Call {
    Call {
        number: number as u32, // below 1,000
        tests,
    }
}

/// The exit code of a process that made another system call: what a shell says of SIGSYS.
pub const CAUGHT: i32 = 159;

fn say_what_was_caught() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) = caught;
    // SAFETY: plain data, valid when zero: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes nothing but calls that a handler may make.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn caught(
    _signal: libc::c_int,
    info: *const libc::siginfo_t,
    _context: *const libc::c_void,
) {
    /// Where `siginfo_t` has the number of the call (`_sigsys._syscall`), in integers.
    const CALL: usize = 6;
    // SAFETY: the kernel passes a whole structure of 128 bytes, aligned for integers.
    let call = unsafe { info.cast::<libc::c_int>().add(CALL).read() };
    let mut digits = [b' '; 10];
    let mut rest = call.unsigned_abs();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let message: [&[u8]; 3] = [b"a machine's process made system call ", &digits, b"\n"];
    for part in message {
        // SAFETY: writes bytes that live.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process at once, as a handler may.
    unsafe { libc::_exit(CAUGHT) };
}
