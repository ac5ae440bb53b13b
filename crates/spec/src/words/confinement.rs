//! What limits commands, in Docker's words.

use std::str::FromStr;

use micabox_wire::Ulimit;

use super::WordError;

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

/// A set of capabilities, as bits of [`Confinement::capabilities`](micabox_wire::Confinement::capabilities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// All that there are.
    pub const ALL: Self = Self((1 << CAPABILITIES.len()) - 1);
}

/// Reads the name of a capability, with or without `CAP_`, or `ALL`, in any case of letters.
impl FromStr for Capabilities {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let upper = text.to_ascii_uppercase();
        if upper == "ALL" {
            return Ok(Self::ALL);
        }
        let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let number = CAPABILITIES.iter().position(|known| *known == plain);
        let set = number.map(|number| Self(1 << number));
        set.ok_or_else(|| {
            "no such capability; capabilities(7) lists them, with or without CAP_, or ALL".into()
        })
    }
}

/// A limit of processes and threads; [`u64::MAX`] for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes(pub u64);

/// Reads a number; 0 and -1 stand for no limit.
impl FromStr for Processes {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text.parse::<i64>() {
            Ok(-1 | 0) => Ok(Self(u64::MAX)),
            Ok(number @ 1..) => Ok(Self(number.unsigned_abs())),
            _ => Err("expected a number; 0 and -1 stand for no limit".into()),
        }
    }
}

/// A limit of each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Ulimit);

/// Reads `NAME=SOFT[:HARD]`; -1 stands for unlimited.
impl FromStr for Limit {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        ulimit(text).map(Self)
    }
}

fn ulimit(text: &str) -> Result<Ulimit, WordError> {
    let (name, limits) = text
        .split_once('=')
        .ok_or("expected NAME=SOFT[:HARD], as in nofile=1024:4096")?;
    let resource = RESOURCES.iter().find(|(known, _)| *known == name);
    let (_, resource) = resource.ok_or_else(|| format!("no such limit: `{name}`"))?;
    let limit = |text: &str| match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(number) => u64::try_from(number).map(Some).map_err(|_| ()),
        Err(_) => Err(()),
    };
    let limit = |text: &str| limit(text).map_err(|()| format!("`{text}`: expected a number or -1"));
    let (soft, hard) = match limits.split_once(':') {
        Some((soft, hard)) => (limit(soft)?, limit(hard)?),
        None => (limit(limits)?, limit(limits)?),
    };
    let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if most(soft) > most(hard) {
        return Err("the soft limit is above the hard one".into());
    }
    Ok(Ulimit {
        resource: *resource,
        soft,
        hard,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_linuxs_numbers() {
        let set = |text: &str| text.parse::<Capabilities>().map(|set| set.0);
        assert_eq!((set("SYS_ADMIN"), set("cap_chown")), (Ok(1 << 21), Ok(1)));
        assert_eq!(set("all"), Ok(Capabilities::ALL.0));
        set("FLY").unwrap_err();
    }

    #[test]
    fn ulimits_and_numbers_are_dockers() {
        let limit = |resource, soft, hard| Ulimit {
            resource,
            soft,
            hard,
        };
        assert_eq!(ulimit("nofile=5"), Ok(limit(7, Some(5), Some(5))));
        assert_eq!(ulimit("nofile=5:6"), Ok(limit(7, Some(5), Some(6))));
        assert_eq!(ulimit("core=-1"), Ok(limit(4, None, None)));
        assert_eq!(ulimit("core=0:-1"), Ok(limit(4, Some(0), None)));
        for bad in [
            "",
            "nofile",
            "x=1",
            "nofile=6:5",
            "nofile=-1:5",
            "nofile=-2",
            "nofile=a",
        ] {
            ulimit(bad).unwrap_err();
        }
        let processes = |text: &str| text.parse::<Processes>();
        assert_eq!(processes("-1"), Ok(Processes(u64::MAX)));
        assert_eq!(processes("7"), Ok(Processes(7)));
        for bad in ["", "-2", "x", "1.5"] {
            processes(bad).unwrap_err();
        }
    }
}
