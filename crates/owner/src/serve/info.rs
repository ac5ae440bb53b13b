//! Replies to clients about a sandbox: what it uses, and how its start went.

use std::time::Instant;

use micabox_vmm::Memory;

use super::Owner;
use crate::protocol::{Info, Stats};

impl Owner {
    /// Returns what the sandbox uses.
    pub(super) fn stats(&self) -> Stats {
        const MICROS_PER_TICK: u64 = 10_000;
        let pid = self.machine.pid();
        let used = crate::process::resources(pid);
        let traffic = self.network.as_ref().map(|network| network.traffic());
        let ticks = crate::process::processor_time(pid).unwrap_or(0);
        let memory = match self.machine.memory() {
            Memory::OfProcesses => Some((used.own, used.shared)),
            Memory::Counted { own, shared } => Some((own, shared)),
            Memory::Unknown => None,
        };
        Stats {
            processor_time: ticks.saturating_mul(MICROS_PER_TICK),
            own_memory: memory.map(|(own, _)| own),
            shared_memory: memory.map(|(_, shared)| shared),
            memory_limited: self.machine.has_memory_limit(),
            processors_limited: self.machine.has_processor_limit(),
            disk_read: used.disk.map(|(read, _)| read),
            disk_written: used.disk.map(|(_, written)| written),
            network_received: traffic.map(|(received, _)| received),
            network_sent: traffic.map(|(_, sent)| sent),
        }
    }

    /// Returns information about the sandbox.
    pub(super) fn info(&self) -> Info {
        let micros = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        let hello = self.guest.hello.as_ref();
        let up = self.guest.up.as_ref();
        let started = self.commands.first.and_then(|first| first.started);
        let output = self.commands.first.and_then(|first| first.first_output);
        Info {
            stalled: self.machine.is_stalled(),
            ending: self.end.has_begun(),
            stop_signal: self.sandbox.stop_signal,
            own_memory: match self.machine.memory() {
                Memory::OfProcesses => crate::process::private_memory(self.machine.pid()),
                Memory::Counted { own, .. } => Some(own),
                Memory::Unknown => None,
            },
            hello: hello.map(|(at, _)| micros(self.guest.begun, *at)),
            kernel: hello.map_or(0, |(_, hello)| hello.init_uptime_us),
            ready: up.map_or(0, |(at, _)| micros(self.guest.begun, *at)),
            phases: up.map(|(_, phases)| phases.clone()).unwrap_or_default(),
            exec: up
                .zip(started)
                .map(|((up, _), started)| micros(*up, started)),
            first_output: started.zip(output).map(|(from, to)| micros(from, to)),
        }
    }
}
