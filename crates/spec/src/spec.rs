//! A sandbox's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use micabox_wire::Init;
use serde::{Deserialize, Serialize};

use crate::{BackendChoice, Command, Expiry, Machine, Network, Root, Setup, Transport, Upper};

/// All settings of a sandbox, but for what it is made from. Its record keeps them, so that it can be started again, and
/// so does a machine that is saved, for its copies.
///
/// In JSON, the fields of [`Self::machine`] are beside the others, and what is missing is as by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    /// The size and the limits of its machine.
    #[serde(flatten)]
    pub machine: Machine,
    /// The requested backend.
    pub backend: BackendChoice,
    /// The requested transport of the image's bytes.
    pub transport: Transport,
    /// The requested lower side of the root.
    pub root: Root,
    /// Whether the guest checks each block of the image that it reads (dm-verity).
    #[serde(skip_serializing_if = "is_default")]
    pub verity: bool,
    /// Where changes go.
    pub upper: Upper,
    /// Its mounts, and what limits its files and processes.
    #[serde(skip_serializing_if = "is_default")]
    pub setup: Setup,
    /// Which process is process 1.
    pub init: Init,
    /// The first command. A sandbox without one can't be started again.
    pub command: Option<Command>,
    /// The host name inside. Default: the first 12 digits of the ID.
    pub hostname: Option<String>,
    /// The signal that asks the first command to end, if not the image's.
    pub stop_signal: Option<i32>,
    /// The network.
    pub network: Network,
    /// The path of the host's socket that leads to its vsock.
    pub vsock: Option<PathBuf>,
    /// When it ends by itself.
    pub expiry: Expiry,
    /// How long its agent may take to answer, if not the backend's default.
    pub boot_timeout: Option<Duration>,
    /// Whether it boots even if there is a template of its machine.
    pub cold: bool,
    /// Whether it is removed after its end.
    pub auto_remove: bool,
    /// Its labels.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
}

/// Returns whether a setting has its default, and so is left out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            machine: Machine::default(),
            backend: BackendChoice::default(),
            transport: Transport::default(),
            root: Root::default(),
            verity: false,
            upper: Upper::default(),
            setup: Setup::default(),
            init: Init::default(),
            command: None,
            hostname: None,
            stop_signal: None,
            network: Network::default(),
            vsock: None,
            expiry: Expiry::default(),
            boot_timeout: None,
            cold: false,
            auto_remove: true,
            labels: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use micabox_wire::{Confinement, TtySize};

    use super::*;

    #[test]
    fn a_specification_survives_in_json_whatever_the_bytes_of_its_command_are() {
        let odd = OsString::from_vec(vec![b'a', 0xff, b'\n']);
        let spec = Spec {
            machine: Machine {
                memory_mib: 77,
                cpus: Some(3),
                require_limits: true,
                ..Machine::default()
            },
            backend: BackendChoice::Qemu,
            command: Some(Command {
                argv: vec!["sh".into(), odd.clone()],
                env: vec![("A".into(), odd), ("B".into(), "ü".into())],
                workdir: "/srv".into(),
                make_workdir: false,
                user: "app".into(),
                tty: Some(TtySize {
                    rows: 24,
                    columns: 80,
                }),
                stdin: true,
                confinement: Confinement {
                    capabilities: Some(1),
                    ..Confinement::default()
                },
            }),
            upper: Upper::Disk { size: 1 << 30 },
            root: Root::Stacked,
            verity: true,
            stop_signal: Some(15),
            network: Network::None,
            vsock: Some("/run/box".into()),
            boot_timeout: Some(Duration::from_millis(1500)),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..Spec::default()
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        // What is missing is as by default.
        assert_eq!(serde_json::from_str::<Spec>("{}").unwrap(), Spec::default());
    }
}
