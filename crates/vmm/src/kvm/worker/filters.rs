//! Seccomp filters: the system calls that each kind of thread may make.

use std::collections::BTreeSet;

use kvm_bindings::{
    kvm_clock_data, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msrs,
    kvm_pit_state2, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use micabox_jail::{Error, Filter};

use crate::kvm::memory::page_map;
use crate::kvm::parts::userfault;

/// The kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Creates the machine, from a saved machine's state if there is one, and starts the other
    /// threads. What this thread may not do, they may not either.
    Builder,
    /// Runs a virtual processor.
    Processor,
    /// Serves a disk.
    Disk,
    /// Serves all other devices, and saves the machine.
    Devices,
    /// Looks whether files that processes serve can be read.
    Files,
    /// Maps files over memory that is missing, when their server has brought them.
    Pager,
}

/// KVM requests of a processor's thread (`linux/kvm.h`): to run, to save the processor's state, and
/// to tell the guest's clock that time has passed.
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
    request(0, 0, 0xad), // The guest was paused.
];

/// Requests of the devices' thread: to save the machine's state, and to find its pages.
const DEVICES_REQUESTS: [u32; 4] = [
    page_map::SCAN,
    change::<kvm_irqchip>(0x62),
    read::<kvm_clock_data>(0x7c),
    read::<kvm_pit_state2>(0x9f),
];

/// Encodes a request as `_IOC` of `asm-generic/ioctl.h`: direction, size of the argument, KVM's
/// number.
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

/// Calls of all threads: to manage memory, lock, query time, exit, and read and write open files.
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

/// Calls of a disk's thread: to wait for the guest, to serve requests to a disk, and to look which pieces of a file are here.
const DISK: [libc::c_long; 7] = [
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
];

/// Calls of the devices' thread: to wait for several events, accept and close connections, and
/// write a snapshot's files; to signal the processors' threads, since no other process is in their
/// namespace.
const DEVICES: [libc::c_long; 10] = [
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_shutdown,
    libc::SYS_tgkill,
    libc::SYS_tkill, // musl's pthread_kill(3)
];

/// Calls of the thread that looks at files: to ask where they have data.
const FILES: [libc::c_long; 1] = [libc::SYS_lseek];

/// Calls of the pager: to look which pieces of a file are here. All threads may map memory.
const PAGER: [libc::c_long; 1] = [libc::SYS_pread64];

/// Calls of the builder: to create events and interrupt lines, to find out which files are served, to be told of missing
/// memory, and to install each thread's filter.
const BUILDER: [libc::c_long; 6] = [
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_fstatfs,
    libc::SYS_rt_sigaction,
    libc::SYS_seccomp,
    libc::SYS_userfaultfd,
];

impl Thread {
    /// Restricts the calling thread, for good.
    ///
    /// # Errors
    /// [`Error::Step`] where the kernel has no seccomp filters.
    pub fn restrict(self) -> Result<(), Error> {
        let (calls, requests): (&[libc::c_long], &[u32]) = match self {
            Self::Builder => return Self::builder().restrict(),
            Self::Processor => (&[], &PROCESSOR_REQUESTS),
            Self::Disk => (&DISK, &[]),
            Self::Devices => (&DEVICES, &DEVICES_REQUESTS),
            Self::Files => (&FILES, &[]),
            Self::Pager => (&PAGER, &[userfault::WAKE]),
        };
        let filter = Filter::allowing(ALL.iter().chain(calls).copied());
        let filter = match requests {
            [] => filter,
            requests => filter.allow_if(libc::SYS_ioctl, 1, u32::MAX, requests),
        };
        filter.restrict()
    }

    /// Returns the filter of the builder: all calls of any thread, all requests to KVM, and the
    /// calls that create the machine.
    fn builder() -> Filter {
        let number = libc::c_int::cast_unsigned;
        let lists = [&ALL[..], &DISK, &DEVICES, &BUILDER];
        let calls: BTreeSet<_> = lists.concat().into_iter().collect();
        let descriptors = [libc::F_DUPFD_CLOEXEC, libc::F_SETFD].map(number);
        Filter::allowing(calls)
            .with_threads()
            .allow_if(libc::SYS_ioctl, 1, 0xff00, &[request(0, 0, 0)])
            .allow_if(
                libc::SYS_ioctl,
                1,
                u32::MAX,
                &[libc::FIONBIO as u32, page_map::SCAN],
            )
            .allow_if(libc::SYS_ioctl, 1, u32::MAX, &userfault::REQUESTS)
            .allow_if(libc::SYS_fcntl, 1, u32::MAX, &descriptors)
            .allow_if(
                libc::SYS_prctl,
                0,
                u32::MAX,
                &[number(libc::PR_SET_NO_NEW_PRIVS)],
            )
    }
}
