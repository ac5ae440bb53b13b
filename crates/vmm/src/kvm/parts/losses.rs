//! What a thread does where a server of files has ended: it connects to the next one, again and again for a while.

use std::io;
use std::time::Duration;

/// Servers that are lost one after the other, without an answer, before what they serve can't be read.
const MOST: u32 = 16;

/// The pause behind the second attempt; the first one, after a server that worked, is at once. Each pause is twice as
/// long as the one before it, up to the longest: one that ends as soon as it is started is not started without end.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a server was lost since its last answer.
#[derive(Debug, Default)]
pub(super) struct Losses(u32);

impl Losses {
    /// Attempts what a server was lost at, with an `error`, until that succeeds. Success is no answer yet.
    ///
    /// # Errors
    /// The last one, if the server was lost too often; the first one of the kind [`io::ErrorKind::NotFound`], by which a
    /// server that is there refuses a file.
    pub(super) fn recover<T>(
        &mut self,
        mut error: io::Error,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        while self.0 < MOST && error.kind() != io::ErrorKind::NotFound {
            std::thread::sleep(self.pause());
            self.0 += 1;
            match attempt() {
                Ok(done) => return Ok(done),
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    /// Notes that the server has answered.
    pub(super) fn end(&mut self) {
        self.0 = 0;
    }

    fn pause(&self) -> Duration {
        match self.0.checked_sub(1) {
            None => Duration::ZERO,
            Some(doubled) => FIRST_PAUSE
                .saturating_mul(2_u32.saturating_pow(doubled))
                .min(LONGEST_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> io::Error {
        io::ErrorKind::UnexpectedEof.into()
    }

    #[test]
    fn a_server_that_comes_back_is_used_and_its_answer_ends_the_count() {
        let mut losses = Losses::default();
        let mut attempts = 0;
        let recovered = losses.recover(gone(), || {
            attempts += 1;
            if attempts < 4 { Err(gone()) } else { Ok("it") }
        });
        assert_eq!(recovered.unwrap(), "it");
        assert_eq!((attempts, losses.0), (4, 4));
        losses.end();
        assert_eq!(losses.pause(), Duration::ZERO);
    }

    #[test]
    fn one_that_is_lost_after_each_success_is_given_up() {
        // Its last pause but one is over.
        let mut losses = Losses(MOST - 1);
        losses.recover(gone(), || Ok(())).unwrap();
        let error = losses.recover(gone(), || -> io::Result<()> { unreachable!() });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn one_that_refuses_a_file_is_not_asked_again() {
        let mut losses = Losses::default();
        let mut attempts = 0;
        let refused = losses.recover(gone(), || -> io::Result<()> {
            attempts += 1;
            Err(io::Error::new(io::ErrorKind::NotFound, "no room"))
        });
        assert_eq!(refused.unwrap_err().to_string(), "no room");
        assert_eq!(attempts, 1);
    }

    #[test]
    fn pauses_grow_and_are_seconds_in_all() {
        let pauses: Vec<_> = (0..MOST).map(|lost| Losses(lost).pause()).collect();
        assert!(pauses.is_sorted());
        assert_eq!(pauses[..3], [0, 1, 2].map(Duration::from_millis));
        let all: Duration = pauses.iter().sum();
        assert!((5..10).contains(&all.as_secs()), "{all:?}");
    }
}
