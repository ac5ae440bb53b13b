//! Moments as Docker's flags take them: dates and times, seconds since 1970, and how long ago.

use std::time::Duration;

use micabox_ground::clock;

use micabox_program::output::ago;

/// Units of durations, with their nanoseconds.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

const EXPECTED: &str = "expected a time ago (10m, 1h30m), a date and time (2026-11-23T06:00:00Z, \
                        2026-11-23), or seconds since 1970";

/// Returns the moment of a text, since 1970-01-01 UTC.
pub fn parse(text: &str) -> Result<Duration, String> {
    let is_number = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number {
        return seconds(text).ok_or_else(|| EXPECTED.to_owned());
    }
    if let Some(moment) = date(text) {
        return Ok(moment);
    }
    let ago = duration(text).ok_or(EXPECTED)?;
    Ok(clock::now().saturating_sub(ago))
}

/// Returns how long ago the moment of a date and time was.
pub fn since(text: &str) -> Option<String> {
    let moment = date(text)?;
    Some(ago(moment.as_secs().try_into().ok()?))
}

/// Parses seconds with nine digits behind the point at most.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    Some(Duration::new(whole.parse().ok()?, nanos(fraction)?))
}

/// Parses the digits behind a decimal point as nanoseconds.
fn nanos(digits: &str) -> Option<u32> {
    if digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<9}").parse().ok()
}

/// Parses a duration, such as `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after
            .find(|char: char| char.is_ascii_digit() || char == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        nanos += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    if text.is_empty() {
        return None;
    }
    Duration::try_from_secs_f64(nanos / 1e9).ok()
}

/// Parses a date, or a date and time, in UTC unless it has an offset.
fn date(text: &str) -> Option<Duration> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text.strip_suffix('Z').unwrap_or(text), "00:00:00Z"),
    };
    let (time, offset) = match time.strip_suffix('Z') {
        Some(time) => (time, 0),
        None => match time.rfind(['+', '-']) {
            Some(at) => (time.get(..at)?, offset(time.get(at..)?)?),
            None => (time, 0),
        },
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = match time.matches(':').count() {
        1 => numbers(&format!("{time}:00"), ':')?,
        _ => numbers(time, ':')?,
    };
    let is_valid = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !is_valid {
        return None;
    }
    // Years from March to February: leap days come last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = (days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(Duration::new(seconds.try_into().ok()?, nanos(fraction)?))
}

/// Parses `+HH:MM` as seconds.
fn offset(text: &str) -> Option<i64> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("-", rest) => (-1, rest),
        (_, rest) => (1, rest),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let [hours, minutes, _] = numbers(&format!("{hours}:{minutes}:0"), ':')?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let numbers = text.split(separator).map(|number| {
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse().ok().filter(|_| is_number)
    });
    numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use micabox_program::output::rfc3339;

    #[test]
    fn moments_are_dates_numbers_or_ages() {
        for seconds in [0, 951_782_399, 951_868_800, 1_709_251_199, 4_107_542_400] {
            let moment = Duration::from_secs(seconds);
            assert_eq!(parse(&rfc3339(seconds)), Ok(moment));
            assert_eq!(parse(&seconds.to_string()), Ok(moment));
        }
        for (text, seconds, nanos) in [
            ("17.5", 17, 500_000_000),
            ("2026-11-23", 1_795_392_000, 0),
            ("2026-11-23T06:00", 1_795_413_600, 0),
            ("2026-11-23T06:00:00.000000001Z", 1_795_413_600, 1),
            ("2026-11-23T08:00:00+02:00", 1_795_413_600, 0),
            ("2026-11-23 01:30:00-04:30", 1_795_413_600, 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::new(seconds, nanos)), "{text}");
        }
        for (text, seconds) in [
            ("2m", 120),
            ("1h30m", 5400),
            ("1.5h", 5400),
            ("90000ms", 90),
        ] {
            let moment = parse(text).unwrap();
            let ago = clock::now() - moment;
            assert!((seconds..seconds + 10).contains(&ago.as_secs()), "{ago:?}");
        }
        for wrong in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-1",
            "+5-01-01",
            "1x",
            "m",
            "-5m",
            "1.2.3",
            "1h30",
            "9e9h",
            "2026-11-23T08:00:00+99:00",
            "1.0000000001",
        ] {
            parse(wrong).unwrap_err();
        }
    }
}
