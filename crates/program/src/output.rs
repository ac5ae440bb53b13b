//! Prints and formats commands' output: tables, sizes, times, JSON.
//!
//! The only place where text is written, to a terminal or elsewhere: `clippy.toml` rejects all
//! others. Text of mica's own passes [`crate::visible`], wherever it goes. Foreign bytes are
//! written as they are, through [`raw`]: a command's output, contents of files, archives, and, as
//! with `ls`, the names of `mica ext4 ls` when stdout is not a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use micabox_ground::{clock, hex};
use serde::Serialize;

use crate::failure::Failure;
use crate::visible;

/// stdout and stderr for bytes that are not mica's own text.
#[expect(
    clippy::disallowed_methods,
    reason = "the place where they are allowed"
)]
pub mod raw {
    use std::io::{self, StderrLock, StdoutLock};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fd::BorrowedFd;

    /// Returns stdout.
    pub fn stdout() -> StdoutLock<'static> {
        io::stdout().lock()
    }

    /// Returns stderr.
    pub fn stderr() -> StderrLock<'static> {
        io::stderr().lock()
    }

    /// Returns stdout without a buffer.
    pub fn stdout_fd() -> BorrowedFd<'static> {
        rustix::stdio::stdout()
    }

    /// Returns whether nothing reads stdout any more.
    pub fn is_stdout_closed() -> bool {
        let stdout = stdout_fd();
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        let closed = PollFlags::ERR | PollFlags::HUP;
        poll(&mut ends, Some(&Timespec::default())).is_ok()
            && ends.iter().any(|end| end.revents().intersects(closed))
    }

    /// Waits until `input` can be read from, stdout is closed, or the time is over.
    pub fn wait(input: Option<BorrowedFd<'_>>, timeout: Duration) {
        let stdout = stdout_fd();
        let mut ends = vec![PollFd::new(&stdout, PollFlags::empty())];
        ends.extend(input.iter().map(|input| PollFd::new(input, PollFlags::IN)));
        // A signal ends it early.
        let _ = poll(&mut ends, Timespec::try_from(timeout).ok().as_ref());
    }

    /// Returns stderr without a buffer.
    pub fn stderr_fd() -> BorrowedFd<'static> {
        rustix::stdio::stderr()
    }
}

/// Bytes copied at a time.
const PIECE: usize = 64 << 10;

/// Writes text to stdout. A closed pipe is not an error: its reader has seen enough.
pub fn print(text: &str) -> Result<(), Failure> {
    write_stdout(visible::lines(text).as_bytes())
}

/// Writes bytes that are not mica's to stdout, see [`raw`].
pub fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = raw::stdout();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.or_else(unless_unread)
}

/// Returns the failure for an error of writing to stdout. A closed pipe is none: its reader has seen enough.
pub fn unless_unread(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Failure::of(&error).context("writing to stdout")),
    }
}

/// Copies bytes as they are. Returns whether all were written: a closed pipe is not an error.
pub fn pass_on(from: &mut impl Read, to: &mut dyn Write) -> Result<bool, Failure> {
    let mut buffer = vec![0; PIECE];
    let reading = |error: io::Error| Failure::of(&error);
    loop {
        let count = from.read(&mut buffer).map_err(reading)?;
        let piece = buffer.get(..count).unwrap_or_default();
        match to.write_all(piece).and_then(|()| to.flush()) {
            Ok(()) if count == 0 => return Ok(true),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(Failure::of(&error).context("writing the output")),
        }
    }
}

/// Writes text to stderr. Errors are ignored.
pub fn write_stderr(text: &str) {
    let _ = raw::stderr().write_all(visible::lines(text).as_bytes());
}

/// Writes `value` as JSON on a line of stderr. Errors are ignored.
pub fn warn_json(value: &impl Serialize) {
    let text = serde_json::to_string(value).unwrap_or_default();
    let _ = raw::stderr().write_all(format!("{}\n", visible::json(&text)).as_bytes());
}

/// Writes `value` as JSON, for scripts.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::of(&error).context("making JSON"))?;
    write_stdout((visible::json(&text).into_owned() + "\n").as_bytes())
}

/// Writes `value` as JSON on a line, for programs that read a stream. Returns whether anything still
/// reads it.
pub fn print_json_line(value: &impl Serialize) -> Result<bool, Failure> {
    let text =
        serde_json::to_string(value).map_err(|error| Failure::of(&error).context("making JSON"))?;
    write_stdout((visible::json(&text).into_owned() + "\n").as_bytes())?;
    Ok(!raw::is_stdout_closed())
}

/// Converts a name for JSON, which has text only. Returns the text and, if the name is not UTF-8
/// and the text therefore incomplete, its bytes as hexadecimal digits.
pub fn json_name(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (
            String::from_utf8_lossy(bytes).into_owned(),
            Some(hex(bytes)),
        ),
    }
}

/// Returns whether stdout is a terminal.
pub fn stdout_is_terminal() -> bool {
    raw::stdout_fd().is_terminal()
}

/// Returns whether stderr is a terminal, where progress is shown.
pub fn stderr_is_terminal() -> bool {
    raw::stderr_fd().is_terminal()
}

/// A table with columns as wide as their widest cell; the last one is not padded.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// Makes a table with these headings. A heading that begins with `>` is that of a column of
    /// numbers, which are flush right.
    pub fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|text| text.starts_with('>')).collect();
        let headings = headings.iter().map(|text| text.trim_start_matches('>'));
        Self {
            rows: vec![headings.map(str::to_owned).collect()],
            right,
        }
    }

    /// Adds a row. Each cell is shown on one line.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells
            .into_iter()
            .map(|cell| visible::line(&cell).into_owned());
        self.rows.push(cells.collect());
    }

    /// Formats the table as text.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                let _ = if *right {
                    write!(line, "{cell:>width$}   ")
                } else {
                    write!(line, "{cell:<width$}   ")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats a number of bytes for people: `17.3 MB`, powers of 1000 as in Docker's lists.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.995 => format!("{value:.2} {name}"),
        _ if value < 99.95 => format!("{value:.1} {name}"),
        _ => format!("{value:.0} {name}"),
    }
}

/// Formats a duration for people, in its largest unit.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        86_400..1_209_600 => (seconds / 86_400, "day"),
        1_209_600..5_184_000 => (seconds / 604_800, "week"),
        5_184_000..63_072_000 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Returns how long ago a moment (seconds since 1970-01-01 UTC) was.
pub fn since(moment: i64) -> Duration {
    let now = clock::now().as_secs();
    let then = u64::try_from(moment).unwrap_or(0);
    Duration::from_secs(now.saturating_sub(then))
}

/// Formats how long ago a moment (seconds since 1970-01-01 UTC) was.
pub fn ago(moment: i64) -> String {
    format!("{} ago", span(since(moment)))
}

/// Formats a moment (seconds since 1970-01-01 UTC) as in RFC 3339.
pub fn rfc3339(moment: u64) -> String {
    let (days, second) = (moment / 86_400, moment % 86_400);
    // Years from March to February, in cycles of 400: leap days come last.
    let day = days + 719_468;
    let (cycle, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year, month + 3),
        _ => (year + 1, month - 9),
    };
    let year = year + cycle * 400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats a duration in milliseconds, for timings.
pub fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (17_260_000, "17.3 MB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (123_456_789_012, "123 GB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn durations_have_one_unit() {
        for (seconds, text) in [
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (7200, "2 hours"),
            (13 * 86_400, "13 days"),
            (14 * 86_400, "2 weeks"),
            (800 * 86_400, "2 years"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_have_dates() {
        for (moment, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(moment), text);
        }
    }

    #[test]
    fn columns_of_a_table_line_up() {
        let mut table = Table::new(&["NAME", ">SIZE", "WHAT"]);
        table.row(["ä".into(), "9 B".into(), "x".into()]);
        table.row(["lo\nr".into(), "10 kB".into(), String::new()]);
        assert_eq!(
            table.render(),
            "NAME     SIZE   WHAT\nä         9 B   x\nlo\\nr   10 kB\n"
        );
    }
}
