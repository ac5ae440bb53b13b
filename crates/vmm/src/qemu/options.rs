//! QEMU's options: words of a command line, with an address for each device.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::pci::Functions;
use crate::Error;

/// PCI functions that every machine uses or may use: the agent's, the entropy device, the balloon
/// and the network interface.
pub(super) const OWN_DEVICES: usize = 4;

/// The driver of a shared folder, which has the modern interface only.
pub(super) const SHARE: &str = "vhost-user-fs-pci";

/// Options so far, and the next free address on the PCI bus.
#[derive(Debug, Default)]
pub(super) struct Options {
    words: Vec<OsString>,
    functions: Functions,
}

impl Options {
    /// Returns the arguments, without the program's name.
    pub(super) fn into_words(self) -> Vec<OsString> {
        self.words
    }

    pub(super) fn flag(&mut self, name: &str) {
        self.words.push(name.into());
    }

    pub(super) fn pair(&mut self, name: &str, value: &str) {
        self.words.push(name.into());
        self.words.push(value.into());
    }

    pub(super) fn path(&mut self, name: &str, path: &Path) {
        self.words.push(name.into());
        self.words.push(path.into());
    }

    /// Adds an option in JSON, which needs no escaping of commas, unlike QEMU's own syntax.
    pub(super) fn json(&mut self, name: &str, value: &Value) {
        self.pair(name, &value.to_string());
    }

    /// Adds a virtio device at the next PCI address.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the bus is full.
    pub(super) fn device(&mut self, mut device: Value) -> Result<(), Error> {
        let address = self.functions.next().ok_or_else(|| Error::Unsupported {
            backend: "QEMU",
            what: format!("has room for {} devices", Functions::COUNT - OWN_DEVICES),
        })?;
        if let Some(fields) = device.as_object_mut() {
            fields.insert("addr".into(), address.to_string().into());
            fields.insert("multifunction".into(), true.into());
            // Only the modern interface, which needs no I/O ports: there are too few.
            // A shared folder has no other.
            if fields.get("driver").is_none_or(|driver| driver != SHARE) {
                fields.insert("disable-legacy".into(), "on".into());
            }
        }
        self.json("-device", &device);
        Ok(())
    }
}

/// Returns all values of one option.
#[cfg(test)]
pub(super) fn values<'a>(words: &'a [OsString], name: &str) -> Vec<&'a str> {
    let pairs = words.windows(2).filter(|pair| pair[0] == name);
    pairs.map(|pair| pair[1].to_str().unwrap()).collect()
}
