//! `HEALTHCHECK` as Docker's image configuration has it.

use serde_json::{Map, Value, json};

use super::change::command_words;

/// Options that are times, with their names in the configuration.
const TIMES: [(&str, &str); 4] = [
    ("--interval=", "Interval"),
    ("--timeout=", "Timeout"),
    ("--start-period=", "StartPeriod"),
    ("--start-interval=", "StartInterval"),
];

/// Parses what follows `HEALTHCHECK`: `NONE`, or options and `CMD` with a command.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut check = Map::new();
    let mut rest = text;
    let (kind, rest) = loop {
        let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        let mut times = TIMES.iter();
        let time = times.find_map(|(option, name)| Some((*name, word.strip_prefix(option)?)));
        match (time, word.strip_prefix("--retries=")) {
            (Some((name, value)), _) => {
                let time = nanoseconds(value).ok_or_else(|| format!("{word}: no time like 30s"))?;
                check.insert(name.to_owned(), json!(time));
            }
            (None, Some(count)) => {
                let count: u32 = count.parse().map_err(|_| format!("{word}: no count"))?;
                check.insert("Retries".to_owned(), json!(count));
            }
            (None, None) => break (word, rest),
        }
    };
    let test = match (kind.to_ascii_uppercase().as_str(), rest) {
        ("NONE", "") if check.is_empty() => vec!["NONE".to_owned()],
        ("CMD", "") => return Err("CMD needs a command".to_owned()),
        ("CMD", line) => match command_words(line)? {
            Some(words) => [vec!["CMD".to_owned()], words].concat(),
            None => vec!["CMD-SHELL".to_owned(), line.to_owned()],
        },
        _ => return Err("expected NONE, or CMD and a command after the options".to_owned()),
    };
    check.insert("Test".to_owned(), json!(test));
    Ok(Value::Object(check))
}

/// Parses a time as Go writes it (`1m30s`, `1.5h`, `500ms`): 0, or a millisecond at least.
fn nanoseconds(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 7] = [
        ("ns", 1.0),
        ("us", 1e3),
        ("µs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("m", 60e9),
        ("h", 3600e9),
    ];
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let after = rest.trim_start_matches(is_number);
        let number: f64 = rest.get(..rest.len() - after.len())?.parse().ok()?;
        let unit = after
            .find(is_number)
            .map_or(after, |end| after.split_at(end).0);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total += number * factor;
        rest = after.get(unit.len()..)?;
    }
    // A century is long enough.
    let is_sane = total == 0.0 || (1e6..3e18).contains(&total);
    (is_sane && !text.is_empty()).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_checks_are_dockers() {
        for (text, expected) in [
            ("NONE", json!({"Test": ["NONE"]})),
            ("none", json!({"Test": ["NONE"]})),
            (
                "CMD curl -f x || exit 1",
                json!({"Test": ["CMD-SHELL", "curl -f x || exit 1"]}),
            ),
            ("cmd [\"a\", \"b c\"]", json!({"Test": ["CMD", "a", "b c"]})),
            (
                "--interval=1m30s --timeout=1.5s  --start-period=0 --start-interval=500ms --retries=3 CMD true",
                json!({"Interval": 90_000_000_000u64, "Timeout": 1_500_000_000u64, "StartPeriod": 0,
                    "StartInterval": 500_000_000, "Retries": 3, "Test": ["CMD-SHELL", "true"]}),
            ),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "CMD",
            "NONE x",
            "--retries=3 NONE",
            "--retries=-1 CMD true",
            "--interval=1 CMD true",
            "--interval=1us CMD true",
            "--interval= CMD true",
            "--interval=1sm CMD true",
            "--unknown=1 CMD true",
            "true",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
