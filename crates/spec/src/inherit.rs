//! What a copy, a template and a pool have of a sandbox's settings. Another start of a sandbox has all of them.
//!
//! The functions that take only a part name every setting, so that a new one is decided here before it compiles; one of the
//! machine, in `machine.rs`.

use std::path::PathBuf;

use micabox_wire::Init;
use serde::Serialize;

use crate::{Command, MountSource, Root, Setup, Spec, Transport, Upper};

/// Returns why a mount can not go to another machine; none if it is in the sandbox itself.
fn of_its_machine(source: &MountSource) -> Option<&'static str> {
    match source {
        MountSource::Tmpfs(_) => None,
        MountSource::Volume(_) => Some("a volume is mounted in it"),
        MountSource::Image(_) => Some("another image is mounted in it"),
        MountSource::Bind(_) => Some("a folder or a file of its machine is mounted in it"),
    }
}

impl Spec {
    /// Returns what is saved with the machine of a start: what a copy may need to know of it. `transport` and `root` are
    /// those that the start has chosen, and `command` is the first one, or that of the sandbox that this one is a copy of.
    #[must_use]
    pub fn saved(&self, transport: Transport, root: Root, command: Option<Command>) -> Self {
        Self {
            transport,
            root,
            command,
            // One sandbox has a port.
            network: self.network.unpublished(),
            // The creator of a copy chooses them.
            labels: <_>::default(),
            ..self.clone()
        }
    }

    /// Returns the settings with which a copy of the machine that was saved with these begins. All others are the copy's
    /// own.
    #[must_use]
    pub fn copied(&self) -> Self {
        let Self {
            machine,
            backend: _,      // what can restore it, or none
            transport,       // the same devices
            root,            // the same mounts
            verity,          // the same devices
            upper,           // the same disk
            setup,           // mounted already
            init,            // runs already
            command: _,      // reattached if that is asked for
            hostname: _,     // names one sandbox
            stop_signal,     // of the command that runs
            network,         // the same device, and what was closed stays closed
            vsock: _,        // leads to one sandbox
            expiry: _,       // counts from a sandbox's own creation
            boot_timeout: _, // nothing boots
            cold: _,         // nothing boots
            auto_remove: _,  // an option of each copy
            labels: _,       // an option of each copy
        } = self;
        Self {
            machine: machine.copied(),
            transport: *transport,
            root: *root,
            verity: *verity,
            upper: upper.clone(),
            setup: setup.clone(),
            init: *init,
            stop_signal: *stop_signal,
            network: network.clone(),
            ..Self::default()
        }
    }

    /// Returns the settings with which a machine that was saved with these continues on another machine, or that another
    /// one has sent: nothing in them names what is on this machine, or opens what is closed here.
    ///
    /// # Errors
    /// What it has that is on the machine where it was saved.
    pub fn elsewhere(&self) -> Result<Self, &'static str> {
        let Self {
            machine,
            backend: _,      // what can restore it, or none
            transport,       // the same devices
            root,            // the same mounts
            verity,          // the same devices
            upper,           // the same disk, if it has one
            setup,           // filesystems in its own memory
            init,            // runs already
            command,         // reattached if that is asked for
            hostname: _,     // names one sandbox
            stop_signal,     // of the command that runs
            network,         // the same device; what was closed stays closed, and nothing is opened
            vsock,           // only whether there is a device
            expiry: _,       // counts from a sandbox's own creation
            boot_timeout: _, // nothing boots
            cold: _,         // nothing boots
            auto_remove: _,  // an option of each copy
            labels: _,       // an option of each copy
        } = self;
        match upper {
            Upper::Tmpfs | Upper::Disk { .. } => {}
            Upper::Folder { .. } => return Err("its changes are in a folder of its machine"),
            Upper::InPlace => return Err("its changes are in its root disk"),
        }
        let sources = setup.mounts.iter().map(|mount| &mount.source);
        if let Some(problem) = sources.filter_map(of_its_machine).next() {
            return Err(problem);
        }
        Ok(Self {
            machine: machine.copied(),
            transport: *transport,
            root: *root,
            verity: *verity,
            upper: upper.clone(),
            setup: setup.clone(),
            init: *init,
            command: command.clone(),
            stop_signal: *stop_signal,
            network: network.elsewhere()?,
            vsock: vsock.as_ref().map(|_| PathBuf::new()),
            ..Self::default()
        })
    }

    /// Returns the settings of a sandbox whose machine is saved as the template of this one's: without what is set up after
    /// a restore, and without published ports.
    #[must_use]
    pub fn bare(&self) -> Self {
        Self {
            setup: Setup::default(),
            network: self.network.unpublished(),
            auto_remove: true,
            ..self.clone()
        }
    }

    /// Returns what makes the template of a machine with these settings another one. `cpus` is their number where none was
    /// asked for, and `shares` the number of virtio-fs devices.
    #[must_use]
    pub fn in_template(&self, cpus: u8, shares: usize) -> impl Serialize + use<> {
        let Self {
            machine,
            backend: _,   // the kernel and its devices are in the template's name
            transport: _, // in its name, as the start has chosen it
            root: _,
            verity: _, // a device more, in its name
            upper,
            setup: _, // set up after the restore
            init,
            command: _,      // started after the restore
            hostname: _,     // set after the restore
            stop_signal: _,  // sent from outside
            network,         // only whether there is a device
            vsock,           // only whether there is a device
            expiry: _,       // counts outside
            boot_timeout: _, // nothing boots
            cold: _,         // has no template
            auto_remove: _,  // happens outside
            labels: _,       // kept outside
        } = self;
        InTemplate {
            machine: machine.in_template(cpus),
            init: *init,
            network: network.is_some(),
            shares,
            upper: upper.clone(),
            vsock: vsock.is_some(),
        }
    }

    /// Returns whether a machine that a pool has started before, from the template of these settings, can be given to the
    /// sandbox: whether all that is not in the template can be set in a machine that runs.
    #[must_use]
    pub fn can_be_pooled(&self) -> bool {
        let Self {
            machine,
            backend: _, // in the template
            transport: _,
            root: _,
            verity: _,
            upper, // a disk is attached before
            setup, // a share's device is attached before
            init: _,
            command: _, // set in a machine that runs, as all below
            hostname: _,
            stop_signal: _,
            network: _,
            vsock, // its socket is made before
            expiry: _,
            boot_timeout: _,
            cold: _, // has no template
            auto_remove: _,
            labels: _,
        } = self;
        *upper == Upper::Tmpfs && vsock.is_none() && machine.can_be_pooled() && setup.shares() == 0
    }
}

/// The settings of a template.
#[derive(Serialize)]
struct InTemplate<M> {
    #[serde(flatten)]
    machine: M,
    init: Init,
    network: bool,
    shares: usize,
    upper: Upper,
    vsock: bool,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::Rules;
    use crate::{
        BackendChoice, BindSource, Expiry, Machine, Mount, MountSource, Network, UserNetwork,
        machine,
    };

    /// A specification with no setting as it is by default.
    fn all_set() -> Spec {
        Spec {
            machine: machine::tests::all_set(),
            backend: BackendChoice::Kvm,
            transport: Transport::Blk,
            root: Root::Stacked,
            verity: true,
            upper: Upper::Disk { size: 64 << 20 },
            setup: Setup {
                pids_limit: Some(50),
                ..Setup::default()
            },
            init: Init::FirstExec,
            command: Some(Command::new(["sleep", "9"])),
            hostname: Some("web".into()),
            stop_signal: Some(9),
            network: Network::User(UserNetwork {
                deny: vec!["10.0.0.0/8".parse().unwrap()],
                publish: vec!["80:80".parse().unwrap()],
                ..UserNetwork::default()
            }),
            vsock: Some("/run/box".into()),
            expiry: Expiry {
                max_life: Some(Duration::from_secs(9)),
                ..Expiry::default()
            },
            boot_timeout: Some(Duration::from_secs(9)),
            cold: true,
            auto_remove: false,
            labels: [("a".to_owned(), "b".to_owned())].into(),
        }
    }

    #[test]
    fn a_copy_has_the_settings_of_its_machine_and_not_those_of_one_sandbox() {
        let original = all_set();
        let saved = original.saved(Transport::Pmem, Root::Merged, original.command.clone());
        // What a copy may need to know is saved, and what one sandbox has alone is not.
        assert_eq!(saved.network, original.network.unpublished());
        assert!(saved.network.published().is_empty() && saved.labels.is_empty());
        assert_eq!(saved.command, original.command);
        assert_eq!(saved.vsock, original.vsock);

        let expected = Spec {
            machine: original.machine.copied(),
            transport: Transport::Pmem,
            root: Root::Merged,
            verity: true,
            upper: original.upper.clone(),
            setup: original.setup.clone(),
            init: original.init,
            stop_signal: original.stop_signal,
            network: original.network.unpublished(),
            ..Spec::default()
        };
        assert_eq!(saved.copied(), expected);
    }

    #[test]
    fn a_template_is_another_one_by_what_is_in_its_machine_and_by_nothing_else() {
        let key = |spec: &Spec| serde_json::to_value(spec.in_template(2, 1)).unwrap();
        let plain = key(&Spec::default());
        assert_eq!(
            plain,
            serde_json::json!({
                "cpus": 2, "init": "Reaper", "memory": 1024, "network": true, "shares": 1,
                "upper": {"kind": "tmpfs"}, "vsock": false,
            })
        );
        type Change = fn(&mut Spec, Spec);
        for change in machine::tests::IN_TEMPLATE {
            let mut spec = Spec::default();
            change(&mut spec.machine, all_set().machine);
            assert_ne!(key(&spec), plain);
        }
        for change in machine::tests::OF_PROCESS {
            let mut spec = Spec::default();
            change(&mut spec.machine, all_set().machine);
            assert_eq!(key(&spec), plain);
        }
        let others: [Change; 4] = [
            |spec, all| spec.upper = all.upper,
            |spec, all| spec.init = all.init,
            |spec, _| spec.network = Network::None,
            |spec, all| spec.vsock = all.vsock,
        ];
        for change in others {
            let mut spec = Spec::default();
            change(&mut spec, all_set());
            assert_ne!(key(&spec), plain);
            assert_eq!(key(&spec.bare()), key(&spec));
        }
        let same: [Change; 8] = [
            |spec, all| spec.setup = all.setup,
            |spec, all| spec.command = all.command,
            |spec, all| spec.hostname = all.hostname,
            |spec, all| spec.stop_signal = all.stop_signal,
            |spec, all| spec.network = all.network,
            |spec, all| spec.expiry = all.expiry,
            |spec, all| spec.boot_timeout = all.boot_timeout,
            |spec, all| spec.labels = all.labels,
        ];
        for change in same {
            let mut spec = Spec::default();
            change(&mut spec, all_set());
            assert_eq!(key(&spec), plain);
        }
    }

    #[test]
    fn a_machine_elsewhere_opens_and_names_nothing_of_either_machine() {
        let mut original = all_set();
        original.network = Network::User(UserNetwork {
            allow: vec!["192.168.0.0/16".parse().unwrap()],
            deny: vec!["10.0.0.0/8".parse().unwrap()],
            resolvers: vec!["127.0.0.1:53".parse().unwrap()],
            ..UserNetwork::default()
        });
        let elsewhere = original.elsewhere().unwrap();
        assert_eq!(elsewhere.elsewhere(), Ok(elsewhere.clone()));
        let Network::User(network) = &elsewhere.network else {
            panic!("it has a network");
        };
        // What it might reach is narrower, and no private network is opened.
        assert_eq!(network.narrower.allow, ["192.168.0.0/16".parse().unwrap()]);
        assert_eq!(network.narrower.deny, ["10.0.0.0/8".parse().unwrap()]);
        assert!(network.allow.is_empty() && network.resolvers.is_empty());
        // The device stays, and leads nowhere.
        assert_eq!(elsewhere.vsock, Some(PathBuf::new()));
        assert_eq!(elsewhere.upper, original.upper);
        assert_eq!(elsewhere.command, original.command);
        assert_eq!((elsewhere.hostname, elsewhere.labels.len()), (None, 0));
    }

    #[test]
    fn a_machine_with_something_of_this_one_does_not_go_elsewhere() {
        type Change = fn(&mut Spec);
        let changes: [Change; 4] = [
            |spec| spec.upper = Upper::InPlace,
            |spec| {
                spec.upper = Upper::Folder {
                    path: "/home".into(),
                }
            },
            |spec| {
                let source = BindSource {
                    source: "/home".into(),
                    cached: false,
                    alone: false,
                };
                spec.setup.mounts = vec![Mount {
                    target: "/srv".into(),
                    source: MountSource::Bind(source),
                    read_only: true,
                }];
            },
            |spec| {
                let rules = Rules {
                    allow: vec!["1.1.1.1/32".parse().unwrap()],
                    ..Rules::default()
                };
                spec.network = Network::User(UserNetwork {
                    allow: rules.allow.clone(),
                    narrower: rules,
                    ..UserNetwork::default()
                });
            },
        ];
        for change in changes {
            let mut spec = all_set();
            change(&mut spec);
            assert!(spec.elsewhere().is_err());
        }
    }

    #[test]
    fn a_machine_of_a_pool_is_given_to_sandboxes_that_need_nothing_before_its_start() {
        assert!(Spec::default().can_be_pooled());
        type Change = fn(&mut Spec, Spec);
        for change in machine::tests::OF_PROCESS {
            let mut spec = Spec::default();
            change(&mut spec.machine, all_set().machine);
            assert!(!spec.can_be_pooled());
        }
        let too_late: [Change; 3] = [
            |spec, all| spec.upper = all.upper,
            |spec, all| spec.vsock = all.vsock,
            |spec, _| {
                spec.setup.mounts = vec![Mount {
                    target: "/srv".into(),
                    source: MountSource::Bind(BindSource {
                        source: "/home".into(),
                        cached: false,
                        alone: false,
                    }),
                    read_only: true,
                }];
            },
        ];
        for change in too_late {
            let mut spec = Spec::default();
            change(&mut spec, all_set());
            assert!(!spec.can_be_pooled());
        }
        let in_time = Spec {
            machine: Machine::default(),
            upper: Upper::default(),
            vsock: None,
            ..all_set()
        };
        assert!(in_time.can_be_pooled());
    }
}
