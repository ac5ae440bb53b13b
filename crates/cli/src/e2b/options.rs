//! Options of `mica run` for all of a server's sandboxes (`--with`), checked when it starts.

use std::time::Duration;

use micabox::DEFAULT_MEMORY_MIB;
use micabox::Upper;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::host_memory::HostMemory;
use crate::serve::flags;
use crate::serve::message::Create;

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
    /// By their long names.
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
            let name = match &*name.replace('_', "-") {
                "network" => "net".to_owned(),
                name => name.to_owned(),
            };
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
        if needs_disk(&all) {
            all.entry("upper").or_insert_with(|| "disk".into());
        }
        let create = Create {
            image: Some("image".to_owned()),
            options: all.clone(),
        };
        let with = |failure: Failure| failure.context("--with");
        let args = flags::parse(&create).map_err(with)?.sandbox;
        args.network(&[]).map_err(with)?;
        let machine = &args.machine;
        Ok(Self {
            cpus: match machine.cpus() {
                Some(cpus) => cpus.whole,
                None => micabox::builder::default_cpus(machine.backend),
            },
            memory_mib: memory_mib(&all, machine.memory().unwrap_or(DEFAULT_MEMORY_MIB)),
            disk_mib: match args.upper {
                Some(Upper::Disk { size }) => size >> 20,
                _ => 0,
            },
            idle_timeout: args.expiry().idle_timeout,
            all,
        })
    }
}

/// Returns the MiB of memory that a sandbox with these options may have, for which so many were asked. On this machine's
/// own kernel, where there is no control group, it has all of this machine's.
pub fn memory_mib(options: &Map<String, Value>, asked: u32) -> u64 {
    let is_host = options.get("backend").and_then(Value::as_str) == Some("host");
    let is_unlimited = is_host && micabox_vmm::control_groups().is_err();
    let host = HostMemory::now().filter(|_| is_unlimited);
    host.map_or(u64::from(asked), |host| host.most >> 20)
}

/// Returns whether sandboxes with these options can be copied only with a disk: a machine without KVM has no saved
/// memory. (On this machine's own kernel there is no disk either.)
fn needs_disk(options: &Map<String, Value>) -> bool {
    match options.get("backend").and_then(Value::as_str) {
        None | Some("auto") => {
            let mut kvm = std::fs::File::options();
            kvm.read(true).write(true).open("/dev/kvm").is_err()
        }
        Some(backend) => backend == "qemu",
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
