//! What an owner's failures are to its client.

use micabox_owner::Lost;
use micabox_owner::protocol::{Failure, Kind};
use micabox_spec::CommandError;

use crate::Error;

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match (failure.kind, failure.start, failure.lost) {
            (Kind::Start, Some(start), _) => Self::Start(*start),
            (Kind::Lost, _, Some(lost)) => Self::Lost(*lost),
            (Kind::TooLong, ..) => CommandError::TooLong.into(),
            (Kind::Paused, ..) => Self::Paused,
            (Kind::Silent, ..) => Self::Silent(failure.message),
            (Kind::Unlimited, ..) => Self::Unlimited(failure.message),
            (Kind::Unwritten, ..) => Self::Unwritten(failure.message),
            (Kind::Ending, ..) => Self::Lost(Lost::closed()),
            (Kind::NotFound, ..) => Self::NoSuchCommand(failure.message),
            (kind, ..) => Self::Refused {
                kind: kind.into(),
                message: failure.message,
            },
        }
    }
}
