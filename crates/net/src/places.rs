//! How many of each there may be at a time: the ends of the network's tables.
//!
//! Nothing is lost at an end without an answer, which is the table's: a reset, an ICMP error, a DNS
//! response.

use rustix::process::{Resource, getrlimit};

/// Maximum numbers, as far as the descriptors that the process may have suffice: half of them for
/// connections, a quarter for conversations, an eighth for questions. Other parts of the process
/// need some too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// TCP connections in both directions together, those included that are not established yet.
    pub(crate) connections: usize,
    /// UDP and echo conversations that the guest began.
    pub(crate) conversations: usize,
    /// Questions to resolvers.
    pub(crate) questions: usize,
    /// Callers of published UDP ports, which have no descriptors.
    pub(crate) callers: usize,
}

/// The numbers if there are enough descriptors. A connection has up to 2 MiB of buffers, and most have
/// far less (`tcp/mod.rs`); all else is small.
const MOST: Places = Places {
    connections: 4096,
    conversations: 4096,
    questions: 1024,
    callers: 16384,
};

impl Places {
    /// Returns the numbers for a process that may have so many descriptors; for this one, if they are
    /// not given.
    pub(crate) fn new(descriptors: Option<u64>) -> Self {
        let limit = || getrlimit(Resource::Nofile).current;
        Self::with_descriptors(descriptors.or_else(limit).unwrap_or(u64::MAX))
    }

    fn with_descriptors(limit: u64) -> Self {
        let share = |most: usize, part: u64| {
            usize::try_from(limit / part).map_or(most, |share| share.clamp(1, most))
        };
        Self {
            connections: share(MOST.connections, 2),
            conversations: share(MOST.conversations, 4),
            questions: share(MOST.questions, 8),
            callers: MOST.callers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_shares_of_the_descriptors() {
        assert_eq!(Places::with_descriptors(u64::MAX), MOST);
        assert_eq!(Places::with_descriptors(16384), MOST);
        let few = Places::with_descriptors(1024);
        assert_eq!(
            (few.connections, few.conversations, few.questions),
            (512, 256, 128)
        );
        assert_eq!(Places::with_descriptors(0).questions, 1);
    }
}
