//! Decides whether to retry a request, and after which pause.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::Transfer;
use crate::error::Reason;

/// Attempts where no connection is made: a wrong name should fail fast.
const CONNECT_ATTEMPTS: u32 = 3;
/// Attempts at a mirror, since there is another place to ask.
const MIRROR_ATTEMPTS: u32 = 2;
/// A pause that a mirror asks for while it gets an image; one that limits its clients asks for more.
const SHORT_PAUSE: Duration = Duration::from_secs(10);
/// Longest pause without a registry's request for one.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// Counts the attempts at one request.
pub(crate) struct Attempts<'a> {
    transfer: &'a Transfer,
    limit: u32,
    /// The limit where a short pause is asked for: a mirror that is getting an image is worth waiting for.
    patient_limit: u32,
    failed: u32,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(transfer: &'a Transfer, mirror: bool) -> Self {
        let limit = if mirror {
            transfer.attempts.min(MIRROR_ATTEMPTS)
        } else {
            transfer.attempts
        };
        Self {
            transfer,
            limit,
            patient_limit: transfer.attempts,
            failed: 0,
        }
    }

    /// Allows at most so many attempts.
    pub(crate) fn limit_to(&mut self, attempts: u32) {
        self.limit = self.limit.min(attempts);
        self.patient_limit = self.patient_limit.min(attempts);
    }

    /// Forgets earlier failures, because the transfer got further.
    pub(crate) fn progressed(&mut self) {
        self.failed = 0;
    }

    /// Counts a failure. Returns the pause before the next attempt, or the error if there should
    /// be none.
    pub(crate) fn failed(&mut self, reason: Reason) -> Result<Duration, Reason> {
        self.failed += 1;
        if !reason.is_passing() {
            return Err(reason);
        }
        let limit = match reason {
            Reason::Connect { .. } => self.limit.min(CONNECT_ATTEMPTS),
            Reason::RateLimited {
                pause: Some(pause), ..
            } if pause <= SHORT_PAUSE => self.patient_limit,
            _ => self.limit,
        };
        let asked = reason.retry_after().unwrap_or_default();
        if self.failed >= limit || asked > self.transfer.longest_pause {
            return Err(match self.failed {
                1 => reason,
                attempts => Reason::GaveUp {
                    attempts,
                    last: Box::new(reason),
                },
            });
        }
        let doublings = (self.failed - 1).min(16);
        let backoff = (self.transfer.first_pause * (1 << doublings)).min(LONGEST_BACKOFF);
        Ok(asked.max(spread(backoff)))
    }
}

/// Returns a random pause of three quarters to all of `pause`, so that clients that lost their
/// connections together don't come back together.
fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) % 1024;
    pause.mul_f64(0.75 + random as f64 / 4096.0)
}

/// Returns the pause that `Retry-After` asks for, in seconds or until a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            Some(date.duration_since(SystemTime::now()).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Reason {
        Reason::Broken("test".into())
    }

    fn limited(pause: Duration) -> Reason {
        Reason::RateLimited {
            pause: Some(pause),
            message: String::new(),
        }
    }

    #[test]
    fn pauses_between_attempts_double() {
        let transfer = Transfer::default();
        let mut attempts = Attempts::new(&transfer, false);
        let mut shortest = Duration::from_millis(187);
        for _ in 1..transfer.attempts {
            let pause = attempts.failed(broken()).unwrap();
            assert!(pause >= shortest && pause <= shortest * 2, "{pause:?}");
            shortest *= 2;
        }
        let error = attempts.failed(broken()).unwrap_err();
        assert!(
            matches!(error, Reason::GaveUp { attempts: 6, .. }),
            "{error}"
        );
        attempts.progressed();
        assert!(attempts.failed(broken()).is_ok());
    }

    #[test]
    fn pauses_never_overflow() {
        let transfer = Transfer {
            attempts: 100,
            ..Transfer::default()
        };
        let mut attempts = Attempts::new(&transfer, false);
        for _ in 1..100 {
            assert!(attempts.failed(broken()).unwrap() <= LONGEST_BACKOFF);
        }
        assert!(attempts.failed(broken()).is_err());
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let transfer = Transfer::default();
        for reason in [
            Reason::NoBlob,
            Reason::Size {
                declared: 1,
                actual: 2,
            },
            Reason::Forbidden(String::new()),
            limited(transfer.longest_pause * 2),
        ] {
            let error = Attempts::new(&transfer, false)
                .failed(reason.clone())
                .unwrap_err();
            assert_eq!(error, reason);
        }
        let mut attempts = Attempts::new(&transfer, false);
        let connect = || Reason::Connect {
            host: "localhost".into(),
            problem: "refused".into(),
        };
        assert!(attempts.failed(connect()).is_ok());
        assert!(attempts.failed(connect()).is_ok());
        assert!(attempts.failed(connect()).is_err());
        let mut mirror = Attempts::new(&transfer, true);
        assert!(mirror.failed(broken()).is_ok());
        assert!(mirror.failed(broken()).is_err());
        // One that asks for a moment is getting the image, one that asks for more has clients enough.
        let tries = |seconds| {
            let mut mirror = Attempts::new(&transfer, true);
            let pause = Duration::from_secs(seconds);
            (1..20).find(|_| mirror.failed(limited(pause)).is_err())
        };
        assert_eq!(
            (tries(5), tries(11)),
            (Some(transfer.attempts as usize), Some(2))
        );
    }

    #[test]
    fn the_registrys_retry_after_counts_if_it_is_longer() {
        let transfer = Transfer::default();
        let pause = |seconds| {
            let reason = limited(Duration::from_secs(seconds));
            Attempts::new(&transfer, false).failed(reason).unwrap()
        };
        assert_eq!(pause(7), Duration::from_secs(7));
        assert!(pause(0) > Duration::ZERO);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let parse = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            retry_after(&headers)
        };
        assert_eq!(parse("3"), Some(Duration::from_secs(3)));
        assert_eq!(parse("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        let pause = parse(&soon).unwrap().as_secs();
        assert!((90..=100).contains(&pause), "{pause}");
        for nonsense in ["", "-1", "soon", "99999999999999999999999"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
