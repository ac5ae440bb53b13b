//! The settings that a sandbox is started with, kept so that it can be started again.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use micabox_vmm::BackendChoice;
use micabox_wire::{Confinement, Init, TtySize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::plan::{Root, Transport};
use crate::{Command, Expiry, Network};

/// The settings of every start of a sandbox that its [`Record`](crate::Record) does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The first command.
    #[serde(with = "StoredCommand")]
    pub command: Command,
    /// The host name inside. Default: the first 12 digits of the ID.
    pub hostname: Option<String>,
    /// The requested transport of the image's bytes.
    pub transport: Transport,
    /// The requested lower side of the root.
    pub root: Root,
    /// Which process is process 1.
    pub init: Init,
    /// The signal that asks the first command to end, if not the image's.
    pub stop_signal: Option<i32>,
    /// The network.
    #[serde(default)]
    pub network: Network,
    /// The path of the host's socket that leads to its vsock.
    #[serde(default)]
    pub vsock: Option<PathBuf>,
    /// Whether it may run virtual machines.
    #[serde(default)]
    pub nested_virtualization: bool,
    /// Whether it must not start without a control group's limits.
    #[serde(default)]
    pub require_limits: bool,
    /// When it ends by itself.
    #[serde(default)]
    pub expiry: Expiry,
    /// How long its agent may take to answer, if not the backend's default.
    #[serde(default)]
    pub boot_timeout: Option<Duration>,
    /// What runs the machine.
    #[serde(default)]
    pub backend: BackendChoice,
    /// Whether its first start must be a boot.
    #[serde(default)]
    pub cold: bool,
    /// Whether it is removed after its end.
    #[serde(default)]
    pub auto_remove: bool,
}

/// A [`Command`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Command")]
struct StoredCommand {
    #[serde(with = "texts")]
    argv: Vec<OsString>,
    #[serde(with = "pairs")]
    env: Vec<(OsString, OsString)>,
    #[serde(with = "text")]
    workdir: OsString,
    #[serde(default = "yes")]
    make_workdir: bool,
    user: String,
    tty: Option<TtySize>,
    stdin: bool,
    #[serde(default)]
    confinement: Confinement,
}

/// What commands did before they said it.
fn yes() -> bool {
    true
}

/// Bytes of an argument or a path: text as a rule, which JSON can hold as a string.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<&OsString> for Text {
    fn from(text: &OsString) -> Self {
        match text.to_str() {
            Some(text) => Self::Utf8(text.to_owned()),
            None => Self::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<Text> for OsString {
    fn from(text: Text) -> Self {
        match text {
            Text::Utf8(text) => text.into(),
            Text::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

/// A [`Command`] in JSON that may be missing.
pub(crate) mod defaults {
    use super::{Command, Deserialize, Deserializer, Serialize, Serializer, StoredCommand};

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "StoredCommand")] Command);

    pub(crate) fn serialize<S: Serializer>(
        command: &Option<Command>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        command.clone().map(Stored).serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Command>, D::Error> {
        let stored = Option::<Stored>::deserialize(from)?;
        Ok(stored.map(|Stored(command)| command))
    }
}

mod text {
    use super::{Deserialize, Deserializer, OsString, Serialize, Serializer, Text};

    pub(super) fn serialize<S: Serializer>(text: &OsString, to: S) -> Result<S::Ok, S::Error> {
        Text::from(text).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<OsString, D::Error> {
        Ok(Text::deserialize(from)?.into())
    }
}

mod texts {
    use super::{Deserialize, Deserializer, OsString, Serializer, Text};

    pub(super) fn serialize<S: Serializer>(texts: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(texts.iter().map(Text::from))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<OsString>, D::Error> {
        let texts = Vec::<Text>::deserialize(from)?.into_iter();
        Ok(texts.map(OsString::from).collect())
    }
}

mod pairs {
    use super::{Deserialize, Deserializer, OsString, Serializer, Text};

    type Pair = (OsString, OsString);

    pub(super) fn serialize<S: Serializer>(pairs: &[Pair], to: S) -> Result<S::Ok, S::Error> {
        let pairs = pairs.iter();
        to.collect_seq(pairs.map(|(name, value)| (Text::from(name), Text::from(value))))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Pair>, D::Error> {
        let pairs = Vec::<(Text, Text)>::deserialize(from)?.into_iter();
        Ok(pairs
            .map(|(name, value)| (name.into(), value.into()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_whatever_its_bytes_are() {
        let odd = OsString::from_vec(vec![b'a', 0xff, b'\n']);
        let spec = Spec {
            command: Command {
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
            },
            hostname: None,
            transport: Transport::Auto,
            root: Root::Stacked,
            init: Init::Reaper,
            stop_signal: Some(15),
            network: Network::None,
            vsock: Some("/run/box".into()),
            nested_virtualization: true,
            require_limits: true,
            expiry: Expiry::default(),
            boot_timeout: Some(Duration::from_millis(1500)),
            backend: BackendChoice::Qemu,
            cold: false,
            auto_remove: false,
        };
        let text = serde_json::to_string(&spec).unwrap();
        let again: Spec = serde_json::from_str(&text).unwrap();
        assert_eq!(again.command, spec.command);
        assert_eq!(again.root, spec.root);
        assert_eq!(again.vsock, spec.vsock);
        assert_eq!(again.backend, spec.backend);
        assert_eq!(again.boot_timeout, spec.boot_timeout);
        assert!(again.nested_virtualization && again.require_limits);
    }
}
