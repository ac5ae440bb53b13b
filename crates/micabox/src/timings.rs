//! Where the time between "run this" and the first output goes.

use std::time::{Duration, Instant};

use crate::agent::{Booted, Moments};

/// Phases of a start, in order. Each begins where the one before ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Reading the image's metadata, choosing devices, writing the record.
    pub plan: Duration,
    /// In place of `vmm`, `kernel` and `agent` in a copy of a machine: all until it was one
    /// of its own.
    pub resume: Option<Duration>,
    /// The monitor's process, its devices and its firmware, up to the kernel's first
    /// instruction.
    pub vmm: Duration,
    /// The kernel, up to the agent's first instruction.
    pub kernel: Duration,
    /// The agent: finding devices, mounting, up to "ready".
    pub agent: Duration,
    /// What the agent says of that time: name and duration of its steps.
    pub agent_steps: Vec<(String, Duration)>,
    /// From "ready" to "the command runs", if one was started.
    pub exec: Option<Duration>,
    /// From "the command runs" to its first byte of output, if there was any.
    pub first_output: Option<Duration>,
}

/// When things happened on our side.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) begun: Instant,
    pub(crate) planned: Instant,
    pub(crate) up: Up,
}

/// How the guest came up.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    /// Its kernel booted.
    Booted(Booted),
    /// It is a copy, and was a machine of its own then.
    Resumed(Instant),
}

impl Start {
    pub(crate) fn timings(&self, first_command: Option<Moments>) -> Timings {
        let Self { begun, planned, up } = self;
        let moments = first_command.unwrap_or_default();
        let between =
            |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        let booted = match up {
            Up::Booted(booted) => booted,
            Up::Resumed(at) => {
                return Timings {
                    plan: planned.saturating_duration_since(*begun),
                    resume: Some(at.saturating_duration_since(*planned)),
                    exec: between(Some(*at), moments.started),
                    first_output: between(moments.started, moments.first_output),
                    ..Timings::default()
                };
            }
        };
        let until_hello = booted.hello_at.saturating_duration_since(*planned);
        // The guest's own words; it may lie, so bound it.
        let kernel = Duration::from_micros(booted.hello.init_uptime_us).min(until_hello);
        Timings {
            plan: planned.saturating_duration_since(*begun),
            resume: None,
            vmm: until_hello.saturating_sub(kernel),
            kernel,
            agent: booted.booted_at.saturating_duration_since(booted.hello_at),
            agent_steps: booted
                .phases
                .iter()
                .map(|phase| (phase.name.clone(), Duration::from_micros(phase.micros)))
                .collect(),
            exec: between(Some(booted.booted_at), moments.started),
            first_output: between(moments.started, moments.first_output),
        }
    }
}

impl Timings {
    /// The phases with names for people, in order.
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

    /// All phases together.
    pub fn total(&self) -> Duration {
        self.phases().iter().map(|(_, time)| *time).sum()
    }
}

#[cfg(test)]
mod tests {
    use micabox_wire::Hello;

    use super::*;

    #[test]
    fn phases_meet_and_a_lying_guest_stays_in_bounds() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut start = Start {
            begun,
            planned: at(2),
            up: Up::Booted(Booted {
                hello_at: at(1002),
                hello: Hello {
                    kernel: "6.12".into(),
                    init_uptime_us: 700_000,
                    memory_bytes: 0,
                    cpus: 1,
                },
                booted_at: at(1102),
                phases: Vec::new(),
            }),
        };
        let moments = Moments {
            started: Some(at(1110)),
            first_output: Some(at(1115)),
        };
        let timings = start.timings(Some(moments));
        let millis: Vec<_> = timings.phases().iter().map(|p| p.1.as_millis()).collect();
        assert_eq!(millis, [2, 300, 700, 100, 8, 5]);
        assert_eq!(timings.total(), Duration::from_millis(1115));

        if let Up::Booted(booted) = &mut start.up {
            booted.hello.init_uptime_us = u64::MAX;
        }
        let timings = start.timings(None);
        assert_eq!((timings.vmm, timings.exec), (Duration::ZERO, None));
        assert_eq!(timings.kernel, Duration::from_secs(1));

        start.up = Up::Resumed(at(30));
        let timings = start.timings(None);
        assert_eq!(timings.phases().len(), 2);
        assert_eq!(timings.total(), Duration::from_millis(30));
    }
}
