//! The control group of a machine's process: what it limits, counts and freezes.

use micabox_jail::{Cgroup, Freezer, GroupMemory, ProcessorTime};

use super::Launch;
use crate::Error;

/// What a process's control group does, for as long as the process has it.
#[derive(Debug)]
pub(super) struct Limits {
    /// The limit of its processor time, or why there is none.
    pub(super) processor_time: Result<ProcessorTime, String>,
    /// What freezes it, or why nothing can, if that is how the machine is paused.
    pub(super) freezer: Option<Result<Freezer, String>>,
    /// What counts the memory of a container, if anything; none for a machine, whose processes have all of it.
    pub(super) counted: Option<Option<GroupMemory>>,
    /// Whether anything keeps the machine from more than it was given.
    pub(super) has_memory: bool,
    pub(super) has_processors: bool,
}

impl Limits {
    /// Creates the control group, if one is available.
    pub(super) fn create(launch: &Launch) -> Result<(Option<Cgroup>, Self), Error> {
        let is_required = launch.machine.require_limits;
        let group = if launch.is_container && !is_required {
            Cgroup::create_available(&launch.quota)
        } else {
            Cgroup::create(&launch.quota)
        };
        let (group, processor_time) = match group {
            Ok(group) => {
                let processor_time = group.processor_time();
                (Some(group), processor_time)
            }
            Err(why) if is_required => return Err(Error::NoLimits { why }),
            // `mica doctor` shows the reason.
            Err(why) => (None, Err(why)),
        };
        let missing = group.as_ref().map_or(&[][..], Cgroup::missing);
        if is_required && !missing.is_empty() {
            let why = format!("no controller for {}", missing.join(", "));
            return Err(Error::NoLimits { why });
        }
        let freezer = launch.is_container.then(|| match &group {
            Some(group) => group.freezer(),
            None => Err("it has no control group".to_owned()),
        });
        let counted = launch
            .is_container
            .then(|| group.as_ref().and_then(Cgroup::memory));
        let has = |what| !launch.is_container || group.is_some() && !missing.contains(&what);
        let limits = Self {
            processor_time,
            freezer,
            counted,
            has_memory: has("memory"),
            has_processors: has("cpu"),
        };
        Ok((group, limits))
    }
}
