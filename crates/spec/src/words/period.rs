//! Periods of time, as coreutils' `timeout` reads them.

use std::str::FromStr;
use std::time::Duration;

use super::WordError;

/// A period of time: seconds, or a number with s, m, h or d, which may have a fraction. 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let (number, factor) = match text.as_bytes().last() {
            Some(b's') => (text.strip_suffix('s'), 1.0),
            Some(b'm') => (text.strip_suffix('m'), 60.0),
            Some(b'h') => (text.strip_suffix('h'), 3600.0),
            Some(b'd') => (text.strip_suffix('d'), 86_400.0),
            _ => (Some(text), 1.0),
        };
        let number: f64 = number
            .and_then(|number| number.parse().ok())
            .ok_or("expected a number, with s, m, h or d")?;
        if number < 0.0 {
            return Err("a duration is not negative".into());
        }
        let period = Duration::try_from_secs_f64(number * factor);
        period.map(Self).map_err(|_| "no such duration".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_a_unit_or_is_of_seconds() {
        let period = |text: &str| text.parse::<Period>().map(|period| period.0);
        assert_eq!(period("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(period("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(period("1d"), Ok(Duration::from_secs(86_400)));
        for bad in ["", "s", "-1", "1x", "nan", "inf", "1e30d"] {
            period(bad).unwrap_err();
        }
    }
}
