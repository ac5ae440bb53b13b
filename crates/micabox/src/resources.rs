//! What a sandbox may use, and changes of it.

use micabox_error::Error;
use micabox_owner::protocol::{Kind, Limit, Reply, Request};
use micabox_spec::network::{Network, Rate as NetRate};
use micabox_spec::{DiskRate, Machine, Spec};
use micabox_state::Record;

use crate::SandboxRef;

/// Changes of what a sandbox may use; what is None stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Guest RAM in MiB, at least 64.
    pub memory_mib: Option<u32>,
    /// Thousandths of a processor, 10 to 64,000. The machine has as many virtual processors as can use
    /// all of it ([`Builder::cpu_quota`](crate::Builder::cpu_quota)).
    pub processors: Option<u32>,
    /// Maximum number of processes and threads of all commands together.
    pub pids_limit: Option<u64>,
    /// What limits the traffic of its disks.
    pub disk_rate: Option<DiskRate>,
    /// What limits the traffic of its network, which it must have.
    pub net_rate: Option<NetRate>,
}

impl Resources {
    /// Returns the limits to change of a sandbox that runs; None if one is a part of its machine.
    fn live(&self, record: &Record) -> Option<Vec<Limit>> {
        if self.memory_mib.is_some() {
            return None;
        }
        let mut limits = Vec::new();
        if let Some(time) = self.processors {
            let all = u32::from(record.cpus()) * 1000;
            let quota = (time < all).then_some(time);
            limits.push((time <= all).then_some(Limit::Processors(quota))?);
        }
        if let Some(processes) = self.pids_limit {
            // Without a limit at its start it has no group of processes.
            record.spec.setup.pids_limit?;
            limits.push(Limit::Processes(processes));
        }
        if let Some(NetRate { incoming, outgoing }) = self.net_rate {
            limits.push(Limit::Network { incoming, outgoing });
        }
        if let Some(rate) = self.disk_rate {
            let DiskRate {
                read,
                write,
                operations,
            } = rate;
            limits.push(Limit::Disk {
                read,
                write,
                operations,
            });
        }
        Some(limits)
    }

    fn check(&self) -> Result<(), String> {
        if self.pids_limit == Some(0) {
            return Err("no command would run in it".to_owned());
        }
        let mut machine = Machine::default();
        self.change(&mut machine);
        machine.check().map_err(|error| error.to_string())
    }

    fn change(&self, machine: &mut Machine) {
        machine.memory_mib = self.memory_mib.unwrap_or(machine.memory_mib);
        if let Some(time) = self.processors {
            let whole = time.div_ceil(1000).max(1);
            machine.cpus = Some(u8::try_from(whole).unwrap_or(u8::MAX));
            machine.cpu_quota = (time < whole.saturating_mul(1000)).then_some(time);
        }
        machine.disk_rate = self.disk_rate.unwrap_or(machine.disk_rate);
    }

    /// Changes the record of a sandbox that does not run.
    fn apply(&self, record: &mut Record) -> Result<(), &'static str> {
        let Spec {
            machine,
            network,
            setup,
            ..
        } = &mut record.spec;
        if let Some(rate) = self.net_rate {
            match network {
                Network::User(network) => network.rate = rate,
                Network::None => return Err("it has no network"),
            }
        }
        self.change(machine);
        setup.pids_limit = self.pids_limit.or(setup.pids_limit);
        Ok(())
    }
}

impl SandboxRef {
    /// Changes what the sandbox may use, for its next start and all later ones. While it runs, the
    /// time of processors can be changed up to that of its machine's virtual processors, the number of
    /// processes if it was started with a limit of them, the rate of its network and, on our own monitor,
    /// that of its disks. They count at once.
    ///
    /// # Errors
    /// [`Error::Running`] if the sandbox must be stopped for it; [`Error::BadChange`] if it can't have
    /// that; [`Error::NotKept`] if it can't be started again; [`Error::Unlimited`] if no control group
    /// limits the processor time of the running one. Limits before the one that failed are changed.
    pub fn update(&self, resources: &Resources) -> Result<(), Error> {
        let not_kept = || self.record().not_kept();
        resources.check().map_err(|why| self.bad_change(why))?;
        let mut problem = None;
        let changed = self.directory().change(self.id(), |record| {
            let applied = record.can_restart().then(|| resources.apply(record))?;
            applied.map_err(|why| problem = Some(why)).ok()
        });
        match changed {
            // Its owner has the record, and its machine.
            Err(Error::Running(name)) => {
                let limits = resources.live(self.reload()?.record());
                let mut limits = limits.ok_or(Error::Running(name))?.into_iter();
                limits.try_for_each(|limit| self.limit(limit))
            }
            Err(error) => Err(error),
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(problem.map_or_else(not_kept, |why| self.bad_change(why))),
        }
    }

    /// Limits a running sandbox.
    fn limit(&self, limit: Limit) -> Result<(), Error> {
        match self.ask(&Request::Limit { limit })? {
            Reply::Limited => Ok(()),
            // What it would say of a sandbox that does not run.
            Reply::Failed(failure) if failure.kind == Kind::Invalid => {
                Err(self.bad_change(failure.message))
            }
            Reply::Failed(failure) if failure.kind == Kind::Unsupported => {
                Err(Error::Running(self.record().name.clone()))
            }
            Reply::Failed(failure) => Err(failure.into()),
            _ => Err(Error::OwnerGone),
        }
    }

    fn bad_change(&self, problem: impl Into<String>) -> Error {
        Error::BadChange {
            name: self.record().name.clone(),
            problem: problem.into(),
        }
    }
}
