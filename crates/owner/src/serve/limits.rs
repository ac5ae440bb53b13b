//! Changes what limits a machine while it runs.

use super::Owner;
use super::client::ClientId;
use crate::protocol::{Failure, Kind, Reply};

/// Least processor time, in thousandths of a processor.
const LEAST: u32 = 10;

impl Owner {
    /// Handles a client's request to limit the machine's processor time.
    pub(super) fn limit_processors(
        &mut self,
        client: ClientId,
        number: u32,
        quota: Option<u32>,
    ) -> Result<(), Failure> {
        if quota.is_some_and(|quota| quota < LEAST) {
            let message = "less than a hundredth of a processor";
            return Err(Failure::new(Kind::Invalid, message));
        }
        let limited = self.machine.limit_processors(quota);
        limited.map_err(|error| match error {
            micabox_vmm::Error::NoLimits { why } => Failure::new(Kind::Unlimited, why),
            error => Failure::new(Kind::Invalid, error.to_string()),
        })?;
        if let Some(registrar) = &mut self.registrar {
            // A failure leaves later starts as they were.
            let _ = registrar.limited(quota);
        }
        self.send(client, number, &Reply::Limited);
        Ok(())
    }
}
