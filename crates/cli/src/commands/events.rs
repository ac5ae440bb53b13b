//! `mica events`

use std::time::{Duration, Instant};

use micabox::{History, SandboxEvent};

use crate::failure::Failure;
use crate::output::{now, print, print_json_line, raw, rfc3339};
use crate::run::duration;
use crate::{Outcome, settings};

/// Interval of looks at all sandboxes, which notes those whose owner was killed.
const LOOK: Duration = Duration::from_secs(1);

/// Show what happens to sandboxes: create, start, exec, exec_die, kill, pause, unpause, rename,
/// update, stop, die, destroy
///
/// The last few thousand events are kept, and shown with --since. Without --until, waits for more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Begin with the events since then [10m, 2026-11-23T06:00:00Z, 1795413600]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<f64>,

    /// End with the events until then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<f64>,

    /// Show only events that match; may be repeated [event=die, sandbox=NAME, image=debian:12]
    #[arg(short, long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    filters: Vec<(Key, String)>,

    /// Print each event as JSON on a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Event,
    Sandbox,
    Image,
}

/// Shows events.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let mut history = History::open(&store);
    let since = args.since.unwrap_or_else(now);
    let mut looked: Option<Instant> = None;
    loop {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            sandboxes.list()?;
        }
        // Looked at before the events: those until then have been read.
        let is_over = args.until.is_some_and(|until| until <= now());
        for event in history.read()? {
            let time = event.time as f64 + f64::from(event.nanos) / 1e9;
            let is_in_time = time >= since && args.until.is_none_or(|until| time <= until);
            if is_in_time && args.matches(&event) {
                args.show(&event)?;
            }
        }
        if is_over || raw::is_stdout_closed() {
            return Ok(0);
        }
        let left = args.until.map_or(f64::INFINITY, |until| until - now());
        let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(LOOK);
        raw::wait(history.changes(), left.min(LOOK));
    }
}

impl Args {
    /// Returns whether an event matches a value of each key.
    fn matches(&self, event: &SandboxEvent) -> bool {
        [Key::Event, Key::Sandbox, Key::Image].iter().all(|key| {
            let mut values = self
                .filters
                .iter()
                .filter(|(other, _)| other == key)
                .peekable();
            values.peek().is_none()
                || values.any(|(_, value)| match key {
                    Key::Event => event.action == *value,
                    Key::Sandbox => event.name == *value || event.id.starts_with(value.as_str()),
                    Key::Image => event.image == *value,
                })
        })
    }

    fn show(&self, event: &SandboxEvent) -> Result<(), Failure> {
        if self.json {
            return print_json_line(event).map(drop);
        }
        let attributes = event.attributes.iter();
        let attributes = attributes.map(|(name, value)| format!(", {name}={value}"));
        let time = rfc3339(event.time.try_into().unwrap_or(0));
        let line = format!(
            "{} {} {} (name={}, image={}{})",
            time.replace('Z', &format!(".{:09}Z", event.nanos)),
            event.action,
            event.id,
            event.name,
            event.image,
            attributes.collect::<String>()
        );
        print(&format!("{}\n", line.replace('\n', " ")))
    }
}

fn filter(text: &str) -> Result<(Key, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let key = match key {
        "event" => Key::Event,
        "sandbox" | "container" => Key::Sandbox,
        "image" => Key::Image,
        _ => return Err("no such key; there are event, sandbox, image".into()),
    };
    Ok((key, value.to_owned()))
}

/// Parses a moment: seconds since 1970-01-01 UTC, a date and time, or how long ago.
fn moment(text: &str) -> Result<f64, String> {
    let is_number = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse() {
        Ok(seconds) if is_number => return Ok(seconds),
        _ => {}
    }
    if let Some(seconds) = date(text) {
        return Ok(seconds);
    }
    let ago = duration(text).map_err(|_| {
        "expected a time ago (10m), a date and time (2026-11-23T06:00:00Z), or seconds since 1970"
    })?;
    Ok(now() - ago.as_secs_f64())
}

/// Parses a date and time as [`rfc3339`] formats them.
fn date(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, separator| -> Option<[u64; 3]> {
        let numbers = text.split(separator).map(|number| number.parse().ok());
        numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
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
    let seconds = (days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_numbers_or_ages() {
        for seconds in [0, 951_782_399, 951_868_800, 1_709_251_199, 4_107_542_400] {
            assert_eq!(moment(&rfc3339(seconds)), Ok(seconds as f64));
        }
        assert_eq!(moment("17.5"), Ok(17.5));
        let ago = now() - moment("2m").unwrap();
        assert!((119.0..130.0).contains(&ago), "{ago}");
        for wrong in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "1x",
            "-5m",
        ] {
            moment(wrong).unwrap_err();
        }
    }
}
