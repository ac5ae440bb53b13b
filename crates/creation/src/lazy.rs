//! What is reported of an image, or of a snapshot's memory, that is not all here when it is started from.

use std::fs::File;

use micabox::History;
use micabox_image::Store;
use micabox_image::store::Image;
use micabox_spec::Transport;
use micabox_spec::options::MachineOptions;

use micabox_program::output;

/// The device by which the kernel has files from processes.
pub(crate) const FUSE: &str = "/dev/fuse";

/// Reports how the layers of an image come that are not whole, if this host lacks what is best. Returns what reports at the
/// end why something did not come; none for an image that is whole.
pub(crate) fn report(machine: &MachineOptions, image: &Image) -> Option<Unread> {
    if micabox_holders::is_whole(image) {
        return None;
    }
    if !machine.quiet
        && let Some(notice) = notice(machine)
    {
        output::write_stderr(&format!("mica: {notice}\n"));
    }
    let digest = image.manifest_digest.to_string();
    Some(Unread::of(&image.store, "digest", digest))
}

fn notice(machine: &MachineOptions) -> Option<String> {
    let fuse = File::options().read(true).write(true).open(FUSE).err()?;
    let fuse = format!("{FUSE}: {fuse}");
    let backend = micabox_vmm::expect(machine.backend).ok()?;
    let before = "all of the image is fetched before the start";
    if !backend.limits().parts {
        return Some(format!("{before}: {fuse} (`mica doctor`)"));
    }
    let lack = micabox_vmm::userfaultfd().err()?;
    match machine.transport {
        Transport::Blk => None,
        Transport::Auto => Some(format!(
            "the image is a disk and no memory, since not all of it is here: {fuse}; {lack} (`mica doctor`)"
        )),
        Transport::Pmem => Some(format!("{before}: {fuse}; {lack} (`mica doctor`)")),
    }
}

/// Reads of an image, or of a snapshot's memory, that have failed since this was made.
#[derive(Debug)]
pub struct Unread {
    history: History,
    /// The attribute that such an event has, and its value.
    key: &'static str,
    value: String,
}

impl Unread {
    pub(crate) fn of(store: &Store, key: &'static str, value: String) -> Self {
        let mut history = History::open(store);
        // Those before are of others. Without the events there is no report.
        let _ = history.read();
        Self {
            history,
            key,
            value,
        }
    }

    /// Reports why the first one has failed, if one has.
    pub fn report(mut self) {
        let events = self.history.read().unwrap_or_default();
        let failed = events.iter().find(|event| {
            let is_ours = event.attributes.get(self.key) == Some(&self.value);
            is_ours && event.action == "read_error"
        });
        if let Some(event) = failed {
            let why = event.attributes.get("error").map_or("", String::as_str);
            let what = match self.key {
                "snapshot" => format!("the memory of snapshot {}", self.value),
                _ => event.image.clone(),
            };
            let line = format!("mica: {what} could not be read: {why}").replace('\n', " ");
            output::write_stderr(&format!("{line}\n"));
        }
    }
}
