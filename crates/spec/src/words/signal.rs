//! Signals by name, as images and users write them.

use std::str::FromStr;

use super::WordError;

/// Linux's numbers on x86-64 and arm64, and their names without `SIG`.
const NAMES: [(&str, i32); 33] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The first real-time signal for programs: the C library keeps 32 and 33.
const RTMIN: i32 = 34;
/// The last signal.
const RTMAX: i32 = 64;

/// A signal by its number, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub i32);

/// Reads `TERM`, `SIGTERM`, `15`, `RTMIN+3` or `RTMAX-2`, in any case, as Docker does.
impl FromStr for Signal {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let number = number(text).map(Self);
        number.ok_or_else(|| "no such signal".into())
    }
}

fn number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=RTMAX).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == bare) {
        return Some(*number);
    }
    let offset = |text: &str, sign: char| match text {
        "" => Some(0),
        text => text
            .strip_prefix(sign)
            .filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))?
            .parse::<i32>()
            .ok(),
    };
    let number = if let Some(rest) = bare.strip_prefix("RTMIN") {
        RTMIN.checked_add(offset(rest, '+')?)?
    } else {
        RTMAX.checked_sub(offset(bare.strip_prefix("RTMAX")?, '-')?)?
    };
    (RTMIN..=RTMAX).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_number_and_real_time_offset() {
        for (name, number) in [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("SigQuit", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("RTMAX-1", Some(63)),
            ("RTMAX", Some(64)),
            ("RTMIN+31", None),
            ("RTMIN-1", None),
            ("RTMIN+-1", None),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("", None),
            ("SIG", None),
            ("SIGSIGTERM", None),
        ] {
            assert_eq!(name.parse().ok(), number.map(Signal), "{name}");
        }
    }
}
