//! The system calls of Docker's default profile (`filter/default.json`).

// Each is named by its constant.
use libc::*;

/// Number of calls that the profile knows: up to `removexattrat`. Later ones are no calls for it.
pub const KNOWN: u32 = 467;

/// The numbers of calls that the C library does not name; of recent ones they are the same on all
/// architectures (`asm-generic/unistd.h`).
const IO_PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") {
    333
} else {
    292
};
const CACHESTAT: c_long = 451;
const FCHMODAT2: c_long = 452;
const MAP_SHADOW_STACK: c_long = 453;
const FUTEX_WAKE: c_long = 454;
const FUTEX_WAIT: c_long = 455;
const FUTEX_REQUEUE: c_long = 456;
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const LSM_GET_SELF_ATTR: c_long = 459;
const LSM_SET_SELF_ATTR: c_long = 460;
const LSM_LIST_MODULES: c_long = 461;
const MSEAL: c_long = 462;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;
const SET_MEMPOLICY_HOME_NODE: c_long = 450;

macro_rules! table {
    (
        every: $($call:ident)*;
        every_on_x86_64: $($old:ident)*;
        $($(#[$only:meta])* $capability:literal: $($of:ident)*;)*
    ) => {
        /// Calls that every command may make.
        pub const ALLOWED: &[c_long] = &[
            $($call,)*
            $(#[cfg(target_arch = "x86_64")] $old,)*
        ];

        /// Calls of processes with a capability, by its number.
        pub const OF_CAPABILITIES: &[(u32, &[c_long])] = &[
            $($(#[$only])* ($capability, &[$($of),*]),)*
        ];

        /// All of them, each with the name of its constant.
        #[cfg(all(test, target_arch = "x86_64"))]
        pub const NAMED: &[(&str, c_long)] = &[
            $((stringify!($call), $call),)*
            $((stringify!($old), $old),)*
            $($((stringify!($of), $of),)*)*
        ];
    };
}

table! {
    every:
        SYS_accept SYS_accept4 SYS_adjtimex SYS_bind SYS_brk CACHESTAT SYS_capget SYS_capset SYS_chdir
        SYS_clock_adjtime SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_close SYS_close_range
        SYS_connect SYS_copy_file_range SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
        SYS_epoll_pwait2 SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat
        SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fanotify_mark SYS_fchdir SYS_fchmod SYS_fchmodat
        FCHMODAT2 SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_flistxattr SYS_flock
        SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex FUTEX_REQUEUE
        FUTEX_WAIT SYS_futex_waitv FUTEX_WAKE SYS_get_robust_list SYS_getcpu SYS_getcwd SYS_getdents64
        SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer SYS_getpeername SYS_getpgid SYS_getpid
        SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid SYS_getresuid SYS_getrlimit SYS_getrusage
        SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid SYS_getxattr
        GETXATTRAT SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy
        SYS_io_getevents IO_PGETEVENTS SYS_io_setup SYS_io_submit SYS_ioctl SYS_ioprio_get SYS_ioprio_set
        SYS_kill SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self SYS_lgetxattr
        SYS_linkat SYS_listen LISTMOUNT SYS_listxattr LISTXATTRAT SYS_llistxattr SYS_lremovexattr SYS_lseek
        SYS_lsetxattr SYS_madvise MAP_SHADOW_STACK SYS_membarrier SYS_memfd_create SYS_memfd_secret
        SYS_mincore SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mprotect
        SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink
        SYS_mremap MSEAL SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall
        SYS_munmap SYS_name_to_handle_at SYS_nanosleep SYS_newfstatat SYS_openat SYS_openat2 SYS_pidfd_open
        SYS_pidfd_send_signal SYS_pipe2 SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl
        SYS_pread64 SYS_preadv SYS_preadv2 SYS_prlimit64 SYS_process_mrelease SYS_process_vm_readv
        SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read
        SYS_readahead SYS_readlinkat SYS_readv SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_remap_file_pages
        SYS_removexattr REMOVEXATTRAT SYS_renameat SYS_renameat2 SYS_restart_syscall SYS_rseq SYS_rt_sigaction
        SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend
        SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max SYS_sched_get_priority_min
        SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
        SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
        SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop SYS_semtimedop
        SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setfsgid
        SYS_setfsuid SYS_setgid SYS_setgroups SYS_setitimer SYS_setpgid SYS_setpriority SYS_setregid
        SYS_setresgid SYS_setresuid SYS_setreuid SYS_setrlimit SYS_setsid SYS_setsockopt SYS_setuid
        SYS_setxattr SETXATTRAT SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown SYS_sigaltstack
        SYS_signalfd4 SYS_socketpair SYS_splice SYS_statfs STATMOUNT SYS_statx SYS_symlinkat SYS_sync
        SYS_sync_file_range SYS_syncfs SYS_sysinfo SYS_tee SYS_tgkill SYS_timer_create SYS_timer_delete
        SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create SYS_timerfd_gettime
        SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask SYS_uname SYS_unlinkat SYS_utimensat
        SYS_vmsplice SYS_wait4 SYS_waitid SYS_write SYS_writev;
    every_on_x86_64:
        SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create
        SYS_epoll_wait SYS_eventfd SYS_fork SYS_futimesat SYS_get_thread_area SYS_getdents SYS_getpgrp
        SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open SYS_pause
        SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_rmdir SYS_select SYS_set_thread_area SYS_signalfd
        SYS_stat SYS_symlink SYS_time SYS_unlink SYS_utime SYS_utimes SYS_vfork;

    // CAP_DAC_READ_SEARCH
    2: SYS_open_by_handle_at;
    // CAP_SYS_MODULE
    16: SYS_delete_module SYS_finit_module SYS_init_module;
    // CAP_SYS_RAWIO
    #[cfg(target_arch = "x86_64")]
    17: SYS_ioperm SYS_iopl;
    // CAP_SYS_CHROOT
    18: SYS_chroot;
    // CAP_SYS_PTRACE
    19: SYS_kcmp SYS_pidfd_getfd SYS_process_madvise;
    // CAP_SYS_PACCT
    20: SYS_acct;
    // CAP_SYS_ADMIN
    21: LSM_GET_SELF_ATTR LSM_LIST_MODULES LSM_SET_SELF_ATTR SYS_bpf SYS_fanotify_init SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_mount SYS_mount_setattr
        SYS_move_mount SYS_open_tree SYS_perf_event_open SYS_quotactl SYS_quotactl_fd SYS_setdomainname
        SYS_sethostname SYS_setns SYS_syslog SYS_umount2 SYS_unshare;
    // CAP_SYS_BOOT
    22: SYS_reboot;
    // CAP_SYS_NICE
    23: SYS_get_mempolicy SYS_mbind SYS_set_mempolicy SET_MEMPOLICY_HOME_NODE;
    // CAP_SYS_TIME
    25: SYS_clock_settime SYS_settimeofday;
    // CAP_SYS_TTY_CONFIG
    26: SYS_vhangup;
    // CAP_SYSLOG
    34: SYS_syslog;
    // CAP_PERFMON
    38: SYS_perf_event_open;
    // CAP_BPF
    39: SYS_bpf;
}
