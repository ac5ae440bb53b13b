//! Options of `mica run` for all of a server's sandboxes (`--with`), checked when it starts.

use std::time::Duration;

use micabox::{BackendChoice, DEFAULT_DISK_SIZE, Upper};
use micabox_spec::options::{UpperOption, long_name};
use serde_json::{Map, Value};

use micabox_creation::Create;
use micabox_program::failure::Failure;
use micabox_program::host_memory::HostMemory;

/// Options that are not for all sandboxes, and why.
const REFUSED: [(&str, &str); 7] = [
    (
        "max-life",
        "how long a sandbox lives is its client's to say",
    ),
    ("name", "each sandbox has a name of its own"),
    ("rm", "the sandboxes are removed when they have ended"),
    ("from", "name the snapshot with --template NAME=SNAPSHOT"),
    ("image", "name the image with --template NAME=IMAGE"),
    ("root-disk", "templates are images or snapshots"),
    ("vsock", "a socket's path is for one sandbox"),
];

/// What the sandboxes of a server are made with.
#[derive(Debug)]
pub struct Options {
    /// By their long names, as they are noted with each sandbox.
    pub all: Map<String, Value>,
    /// Processors of a sandbox.
    pub cpus: u8,
    /// Its memory.
    pub memory_mib: u64,
    /// Its disk, 0 without one.
    pub disk_mib: u64,
    /// How long it may be idle; None for ever.
    pub idle_timeout: Option<Duration>,
}

impl Options {
    /// Reads what was asked for, and adds a disk where nothing else can keep the state of a sandbox for others.
    pub fn new(given: Vec<(String, Value)>) -> Result<Self, Failure> {
        let mut all = Map::new();
        for (name, value) in given {
            let name = long_name(&name);
            if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
                return Err(Failure::new(format!("--with {name}: {why}")));
            }
            match all.get_mut(&name) {
                Some(Value::Array(values)) => values.push(value),
                Some(before) => *before = Value::Array(vec![before.take(), value]),
                None => {
                    all.insert(name, value);
                }
            }
        }
        let create = Create {
            image: Some("image".to_owned()),
            options: all,
        };
        let with = |failure: Failure| failure.context("--with");
        let mut wanted = micabox_creation::wanted(&create).map_err(with)?;
        wanted.check_network().map_err(with)?;
        let mut all = create.options;
        let backend = wanted.options.machine.backend;
        if wanted.options.files.upper.is_none() && needs_disk(backend) {
            let size = DEFAULT_DISK_SIZE;
            wanted.options.files.upper = Some(UpperOption(Upper::Disk { size }));
            all.insert("upper".to_owned(), "disk".into());
        }
        Ok(Self {
            cpus: wanted.cpus(),
            memory_mib: memory_mib(backend, wanted.memory_mib()),
            disk_mib: wanted.disk_size().unwrap_or(0) >> 20,
            idle_timeout: wanted.idle_timeout(),
            all,
        })
    }
}

/// Returns the MiB of memory that a sandbox may have, for which so many were asked. On this machine's own kernel, where
/// there is no control group, it has all of this machine's.
pub fn memory_mib(backend: BackendChoice, asked: u32) -> u64 {
    let is_unlimited = backend == BackendChoice::Host && micabox_vmm::control_groups().is_err();
    let host = HostMemory::now().filter(|_| is_unlimited);
    host.map_or(u64::from(asked), |host| host.most >> 20)
}

/// Returns whether sandboxes can be copied only with a disk: a machine without KVM has no saved memory. (On this machine's
/// own kernel there is no disk either.)
fn needs_disk(backend: BackendChoice) -> bool {
    match backend {
        BackendChoice::Auto => {
            let mut kvm = std::fs::File::options();
            kvm.read(true).write(true).open("/dev/kvm").is_err()
        }
        BackendChoice::Qemu => true,
        BackendChoice::Kvm | BackendChoice::Host => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(given: &[(&str, &str)]) -> Result<Options, Failure> {
        let given = given.iter();
        Options::new(
            given
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect(),
        )
    }

    #[test]
    fn options_for_all_sandboxes_are_checked_first() {
        let host = ("backend", "host");
        let some = options(&[host, ("net_allow", "10.0.0.0/8"), ("net-allow", "1.1.1.1")]);
        let some = some.unwrap();
        assert_eq!(some.all["net-allow"], json!(["10.0.0.0/8", "1.1.1.1"]));
        assert_eq!(some.disk_mib, 0);
        let some = options(&[("backend", "kvm"), ("memory", "2g"), ("idle-timeout", "1h")]);
        let some = some.unwrap();
        assert_eq!(some.memory_mib, 2048);
        assert_eq!(some.idle_timeout, Some(Duration::from_secs(3600)));
        assert_eq!(
            options(&[host, ("network", "none")]).unwrap().all["net"],
            "none"
        );
        for (wrong, said) in [
            (("colour", "blue"), "colour"),
            (("memory", "much"), "memory"),
            (("max-life", "1h"), "client"),
            (("name", "one"), "its own"),
        ] {
            let failure = options(&[host, wrong]).unwrap_err();
            assert!(failure.message().contains(said), "{}", failure.message());
        }
        options(&[host, ("net", "none"), ("net-allow", "1.1.1.1")]).unwrap_err();
    }
}
