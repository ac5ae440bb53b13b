//! The phases of the time between a start and the first output.

use std::time::Duration;

use micabox_owner::protocol::Info;

/// Phases of a start, in order. Each begins where the one before ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Reading the image's metadata, choosing devices, writing the record.
    pub plan: Duration,
    /// In place of `vmm`, `kernel` and `agent` for a restored machine: the whole restore.
    pub resume: Option<Duration>,
    /// The monitor's process, its devices and its firmware, up to the kernel's first
    /// instruction.
    pub vmm: Duration,
    /// The kernel, up to the agent's first instruction.
    pub kernel: Duration,
    /// The agent: finding devices, mounting, up to "ready".
    pub agent: Duration,
    /// The agent's own account of that phase: name and duration of its steps.
    pub agent_steps: Vec<(String, Duration)>,
    /// From "ready" until the command runs, if one was started.
    pub exec: Option<Duration>,
    /// From when the command runs until its first byte of output, if there was any.
    pub first_output: Option<Duration>,
}

impl Timings {
    /// Makes the phases of an owner's measurements, after a start that took `plan` until the
    /// machine was started.
    pub(crate) fn new(plan: Duration, info: &Info) -> Self {
        let micros = Duration::from_micros;
        let (exec, first_output) = (info.exec.map(micros), info.first_output.map(micros));
        let ready = micros(info.ready);
        let Some(hello) = info.hello.map(micros) else {
            return Self {
                plan,
                resume: Some(ready),
                exec,
                first_output,
                ..Self::default()
            };
        };
        // The guest's own account; it may lie, so it is bounded.
        let kernel = micros(info.kernel).min(hello);
        Self {
            plan,
            resume: None,
            vmm: hello.saturating_sub(kernel),
            kernel,
            agent: ready.saturating_sub(hello),
            agent_steps: info
                .phases
                .iter()
                .map(|phase| (phase.name.clone(), micros(phase.micros)))
                .collect(),
            exec,
            first_output,
        }
    }
}

impl Timings {
    /// Returns the phases with names for people, in order.
    pub fn phases(&self) -> Vec<(&'static str, Duration)> {
        let mut phases = match self.resume {
            Some(resume) => vec![("plan", self.plan), ("resume", resume)],
            None => vec![
                ("plan", self.plan),
                ("VMM start", self.vmm),
                ("kernel", self.kernel),
                ("agent mounts", self.agent),
            ],
        };
        phases.extend(self.exec.map(|time| ("exec", time)));
        phases.extend(self.first_output.map(|time| ("first output", time)));
        phases
    }

    /// Returns the sum of all phases.
    pub fn total(&self) -> Duration {
        self.phases().iter().map(|(_, time)| *time).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_meet_and_a_lying_guest_stays_in_bounds() {
        let mut info = Info {
            hello: Some(1_000_000),
            kernel: 700_000,
            ready: 1_100_000,
            exec: Some(8_000),
            first_output: Some(5_000),
            ..Info::default()
        };
        let plan = Duration::from_millis(2);
        let timings = Timings::new(plan, &info);
        let millis: Vec<_> = timings.phases().iter().map(|p| p.1.as_millis()).collect();
        assert_eq!(millis, [2, 300, 700, 100, 8, 5]);
        assert_eq!(timings.total(), Duration::from_millis(1115));

        (info.kernel, info.exec, info.first_output) = (u64::MAX, None, None);
        let timings = Timings::new(plan, &info);
        assert_eq!((timings.vmm, timings.exec), (Duration::ZERO, None));
        assert_eq!(timings.kernel, Duration::from_secs(1));

        (info.hello, info.ready) = (None, 28_000);
        let timings = Timings::new(plan, &info);
        assert_eq!(timings.phases().len(), 2);
        assert_eq!(timings.total(), Duration::from_millis(30));
    }
}
