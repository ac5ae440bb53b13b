//! Names of what limits commands.

/// Names of capabilities, by number (linux/capability.h).
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Names of resources in Docker's `--ulimit`, with the kernel's numbers.
const RESOURCES: [(&str, u32); 15] = [
    ("cpu", 0),
    ("fsize", 1),
    ("data", 2),
    ("stack", 3),
    ("core", 4),
    ("rss", 5),
    ("nproc", 6),
    ("nofile", 7),
    ("memlock", 8),
    ("locks", 10),
    ("sigpending", 11),
    ("msgqueue", 12),
    ("nice", 13),
    ("rtprio", 14),
    ("rttime", 15),
];

/// Returns the set that a name of Docker's stands for, as bits of
/// [`Confinement::capabilities`](crate::Confinement::capabilities): a capability with or without
/// `CAP_`, or `ALL`, in any case of letters.
pub fn capability_set(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    if upper == "ALL" {
        return Some((1 << CAPABILITIES.len()) - 1);
    }
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let number = CAPABILITIES.iter().position(|known| *known == plain)?;
    Some(1 << number)
}

/// Returns the kernel's number of a resource by its name in Docker's `--ulimit`.
pub fn ulimit_number(name: &str) -> Option<u32> {
    let known = RESOURCES.iter().find(|(known, _)| *known == name)?;
    Some(known.1)
}
