//! Image configurations: what an image is for, and how its programs run (OCI image specification, `config.md`).
//!
//! Fields that the specification doesn't have are left out when a configuration is read: what changes an image's
//! configuration and must keep them (Docker's health checks) edits its document, [`Json`](crate::json::Json). Platforms
//! and digests are text as it stands in the document; who uses them checks them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Defines, for each field, a method that returns it and one that sets it.
macro_rules! accessors {
    ($type:ident: $($field:ident $set:ident $of:ty, $what:literal;)*) => {
        impl $type {
            $(
                #[doc = concat!("Returns ", $what, ".")]
                #[must_use]
                pub fn $field(&self) -> &$of {
                    &self.$field
                }

                #[doc = concat!("Sets ", $what, ".")]
                pub fn $set(&mut self, value: $of) -> &mut Self {
                    self.$field = value;
                    self
                }
            )*
        }
    };
}

/// An image's configuration (`config.md`, "Properties").
///
/// Fields are serialized in the specification's order, without those that are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    architecture: String,
    os: String,
    #[serde(rename = "os.version", skip_serializing_if = "Option::is_none")]
    os_version: Option<String>,
    #[serde(rename = "os.features", skip_serializing_if = "Option::is_none")]
    os_features: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<Config>,
    rootfs: RootFs,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<History>>,
}

accessors! { ImageConfiguration:
    created set_created Option<String>, "when the image was made, in RFC 3339";
    author set_author Option<String>, "who made the image";
    architecture set_architecture String, "the processor that the image is for, in Go's spelling (`amd64`)";
    os set_os String, "the operating system that the image is for, in Go's spelling (`linux`)";
    os_version set_os_version Option<String>, "the version of the operating system";
    os_features set_os_features Option<Vec<String>>, "features that the operating system must have";
    variant set_variant Option<String>, "the variant of the processor (`v7`)";
    config set_config Option<Config>, "how the image's programs run";
    rootfs set_rootfs RootFs, "the image's layers";
    history set_history Option<Vec<History>>, "how each layer was made, the lowest first";
}

/// How an image's programs run (`config.md`, the object `config`).
///
/// Fields are serialized in this order, without those that are `None`; what is in a set or a map is in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "keys")]
    exposed_ports: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cmd: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "keys")]
    volumes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_signal: Option<String>,
}

accessors! { Config:
    user set_user Option<String>, "the user, and after a colon the group, by name or number";
    exposed_ports set_exposed_ports Option<Vec<String>>, "the ports that programs listen on (`53/udp`), each once";
    env set_env Option<Vec<String>>, "the environment, in entries `NAME=VALUE`";
    entrypoint set_entrypoint Option<Vec<String>>, "the beginning of the command";
    cmd set_cmd Option<Vec<String>>, "the command, or its arguments after those of the entrypoint";
    volumes set_volumes Option<Vec<String>>, "the folders with data of a container's own, each once";
    working_dir set_working_dir Option<String>, "the folder that commands begin in";
    labels set_labels Option<BTreeMap<String, String>>, "the labels, by name";
    stop_signal set_stop_signal Option<String>, "the signal that ends the program (`SIGQUIT`, `3`)";
}

/// An image's layers (`config.md`, the object `rootfs`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Vec<String>,
}

accessors! { RootFs:
    kind set_kind String, "what it consists of: `layers` is the only kind";
    diff_ids set_diff_ids Vec<String>, "the digests of the layers' archives, not compressed, the lowest first";
}

impl Default for RootFs {
    fn default() -> Self {
        Self {
            kind: "layers".to_owned(),
            diff_ids: Vec::new(),
        }
    }
}

/// How a layer, or a part of the configuration, was made (`config.md`, the objects in `history`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    empty_layer: Option<bool>,
}

accessors! { History:
    created set_created Option<String>, "when it was made, in RFC 3339";
    author set_author Option<String>, "who made it";
    created_by set_created_by Option<String>, "the command that made it";
    comment set_comment Option<String>, "a comment on it";
}

impl History {
    /// Returns whether it made no layer.
    #[must_use]
    pub fn empty_layer(&self) -> Option<bool> {
        self.empty_layer
    }

    /// Sets whether it made no layer.
    pub fn set_empty_layer(&mut self, value: Option<bool>) -> &mut Self {
        self.empty_layer = value;
        self
    }
}

/// Go's sets of strings: objects whose values have nothing in them.
mod keys {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Nothing {}

    pub(super) fn serialize<S: Serializer>(
        names: &Option<Vec<String>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let names: BTreeSet<_> = names.iter().flatten().collect();
        let mut map = serializer.serialize_map(Some(names.len()))?;
        for name in names {
            map.serialize_entry(name, &Nothing {})?;
        }
        map.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<String>>, D::Error> {
        let set = Option::<BTreeMap<String, Nothing>>::deserialize(deserializer)?;
        Ok(set.map(|set| set.into_keys().collect()))
    }
}
