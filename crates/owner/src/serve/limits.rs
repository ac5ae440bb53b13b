//! Changes what limits a sandbox while it runs.

use micabox_spec::DiskRate;
use micabox_vmm::Error;
use micabox_wire::ToGuest;

use super::Owner;
use super::client::ClientId;
use crate::protocol::{Failure, Kind, Limit, Reply};

/// Least processor time, in thousandths of a processor.
const LEAST: u32 = 10;

impl Owner {
    /// Handles a client's request to limit what the sandbox may use.
    pub(super) fn limit(
        &mut self,
        client: ClientId,
        number: u32,
        limit: Limit,
    ) -> Result<(), Failure> {
        let invalid = |message: &str| Err(Failure::new(Kind::Invalid, message));
        match limit {
            Limit::Processors(Some(0..LEAST)) => {
                return invalid("less than a hundredth of a processor");
            }
            Limit::Processors(quota) => {
                let limited = self.machine.limit_processors(quota);
                limited.map_err(failure)?;
            }
            Limit::Processes(0) => return invalid("no command would run in it"),
            Limit::Processes(most) => self.guest.send(ToGuest::LimitProcesses { most }),
            Limit::Network { incoming, outgoing } => match &self.network {
                Some(network) => network.limit(incoming, outgoing),
                None => return invalid("it has no network"),
            },
            Limit::Disk {
                read,
                write,
                operations,
            } => {
                self.saving.check_not_paused()?;
                let rate = DiskRate {
                    read,
                    write,
                    operations,
                };
                self.machine.limit_disks(&rate).map_err(failure)?;
            }
        }
        if let Some(registrar) = &mut self.registrar {
            // A failure leaves later starts as they were.
            let _ = registrar.limited(limit);
        }
        self.clients.send(client, number, &Reply::Limited);
        Ok(())
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NoLimits { why } => Failure::new(Kind::Unlimited, why),
        Error::Paused => Failure::new(Kind::Paused, "the sandbox is paused for a copy"),
        error @ Error::Unsupported { .. } => Failure::new(Kind::Unsupported, error.to_string()),
        error => Failure::new(Kind::Invalid, error.to_string()),
    }
}
