//! `mica logs`

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::time::Duration;

use micabox::{LogReader, LogRecord, LogStream};
use micabox_ground::clock;

use crate::moment;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{raw, rfc3339, write_stderr};
use micabox_program::settings;

/// Interval of reads while a log is followed.
const POLL: Duration = Duration::from_millis(50);

/// Show the output of a detached sandbox's command
///
/// The last 8 to 16 MB of it are kept, until `mica rm`; what the store had no room for is noted in its place. The output is printed unchanged, control
/// characters included.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Follow the log until the sandbox ends
    #[arg(short, long)]
    follow: bool,

    /// Show only this many lines from the end, or all
    #[arg(short = 'n', long, value_name = "LINES", value_parser = tail, default_value = "all", hide_default_value = true)]
    tail: Tail,

    /// Show only lines that began at that time or later [10m, 2026-11-23T06:00:00Z, 1795413600]
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<Duration>,

    /// Show only lines that began at that time or earlier
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<Duration>,

    /// Begin each line with its time
    #[arg(short, long)]
    timestamps: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Most lines from the end; none for all.
#[derive(Clone, Copy, Debug)]
struct Tail(Option<usize>);

fn tail(text: &str) -> Result<Tail, String> {
    match text {
        "all" => Ok(Tail(None)),
        text => text
            .parse()
            .map(|lines| Tail(Some(lines)))
            .map_err(|_| "expected a number of lines, or all".into()),
    }
}

/// Shows a log.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let Some(mut log) = sandboxes.get(&args.sandbox)?.log()? else {
        let message = format!("sandbox {} has no log", args.sandbox);
        return Err(Failure::new(message)
            .hint("logs are kept for sandboxes started with `mica run -d` or `mica start`"));
    };
    match show(args, &mut log) {
        Ok(()) => Ok(0),
        Err(Problem::Log(failure)) => Err(failure),
        // The reader has seen enough.
        Err(Problem::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(Problem::Output(error)) => Err(Failure::of(&error).context("writing the log")),
    }
}

enum Problem {
    Log(Failure),
    Output(io::Error),
}

impl From<micabox::Error> for Problem {
    fn from(error: micabox::Error) -> Self {
        Self::Log(error.into())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn show(args: &Args, log: &mut LogReader) -> Result<(), Problem> {
    let mut lines = Lines::new(args.timestamps);
    let mut window = Window::new(args.since, args.until);
    if let Tail(Some(tail)) = args.tail {
        for piece in last(|| Ok::<_, Problem>(log.next_record()?), tail, &mut window)? {
            lines.write(&piece)?;
        }
    }
    loop {
        // Before the log is read, so that nothing written until then is missed.
        let is_over = args.until.is_some_and(|until| until < clock::now());
        let is_live = args.follow && !is_over && log.is_live()?;
        while let Some(record) = log.next_record()? {
            for piece in window.pieces(&record) {
                lines.write(&piece)?;
            }
        }
        if !is_live {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// The lines that are asked for, by the times at which they began.
struct Window {
    since: Duration,
    until: Duration,
    /// Of each stream, whether its current line is asked for; none between lines.
    wants: [Option<bool>; 2],
}

impl Window {
    fn new(since: Option<Duration>, until: Option<Duration>) -> Self {
        Self {
            since: since.unwrap_or(Duration::ZERO),
            until: until.unwrap_or(Duration::MAX),
            wants: [None; 2],
        }
    }

    /// Returns those lines of a record, and pieces of lines, that are asked for; a gap is one.
    fn pieces(&mut self, record: &LogRecord) -> Vec<LogRecord> {
        let piece = |bytes: &[u8]| LogRecord {
            bytes: bytes.to_vec(),
            ..*record
        };
        let is_in_time = (self.since..=self.until).contains(&record.at);
        if record.missing > 0 {
            return is_in_time.then(|| piece(&[])).into_iter().collect();
        }
        let [out, err] = &mut self.wants;
        let wants = match record.stream {
            LogStream::Stdout => out,
            LogStream::Stderr => err,
        };
        let lines = record.bytes.split_inclusive(|byte| *byte == b'\n');
        let lines = lines.filter(|piece| {
            let is_wanted = *wants.get_or_insert(is_in_time);
            if piece.ends_with(b"\n") {
                *wants = None;
            }
            is_wanted
        });
        lines.map(piece).collect()
    }
}

/// Returns the last `tail` lines of the log so far, in the order of their ends: between the pieces
/// of one stream's line, there may be pieces of the other stream's.
fn last<E>(
    mut next: impl FnMut() -> Result<Option<LogRecord>, E>,
    tail: usize,
    window: &mut Window,
) -> Result<Vec<LogRecord>, E> {
    let mut lines = VecDeque::new();
    let mut end = |line: &mut Vec<LogRecord>| {
        lines.push_back(mem::take(line));
        if lines.len() > tail {
            lines.pop_front();
        }
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(record) = next()? {
        for piece in window.pieces(&record) {
            if piece.missing > 0 {
                end(&mut vec![piece]);
                continue;
            }
            let line = match piece.stream {
                LogStream::Stdout => &mut out,
                LogStream::Stderr => &mut err,
            };
            let is_end = piece.bytes.ends_with(b"\n");
            line.push(piece);
            if is_end {
                end(line);
            }
        }
    }
    for mut line in [out, err] {
        if !line.is_empty() {
            end(&mut line);
        }
    }
    Ok(lines.into_iter().flatten().collect())
}

/// Writes records, and tracks where the lines of each stream begin.
struct Lines {
    timestamps: bool,
    /// For stdout and stderr: whether the next byte begins a line.
    begins: [bool; 2],
}

impl Lines {
    fn new(timestamps: bool) -> Self {
        Self {
            timestamps,
            begins: [true; 2],
        }
    }

    fn write(&mut self, record: &LogRecord) -> io::Result<()> {
        if record.missing > 0 {
            let missing = record.missing;
            write_stderr(&format!(
                "mica: {missing} bytes of output are missing here: the store had no room for them\n"
            ));
            return Ok(());
        }
        let [out, err] = &mut self.begins;
        let (begins, to): (_, &mut dyn Write) = match record.stream {
            LogStream::Stdout => (out, &mut raw::stdout()),
            LogStream::Stderr => (err, &mut raw::stderr()),
        };
        if !self.timestamps {
            to.write_all(&record.bytes)?;
            return to.flush();
        }
        let seconds = rfc3339(record.at.as_secs());
        let nanos = record.at.subsec_nanos();
        let moment = format!("{}.{nanos:09}Z ", seconds.trim_end_matches('Z'));
        for line in record.bytes.split_inclusive(|byte| *byte == b'\n') {
            if *begins {
                to.write_all(moment.as_bytes())?;
            }
            to.write_all(line)?;
            *begins = line.ends_with(b"\n");
        }
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_last_lines_of_a_log_are_whole() {
        use LogStream::{Stderr, Stdout};
        let said = [
            (Stdout, "one\nth"),
            (Stderr, "two\nun"),
            (Stdout, "ree\n"),
            (Stderr, "finished"),
        ];
        let tail = |count| {
            let mut records = said.iter().map(|(stream, text)| LogRecord {
                stream: *stream,
                at: Duration::ZERO,
                bytes: text.as_bytes().to_vec(),
                missing: 0,
            });
            let next = || Ok::<_, Infallible>(records.next());
            let Ok(last) = last(next, count, &mut Window::new(None, None));
            let text: Vec<u8> = last.into_iter().flat_map(|record| record.bytes).collect();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(tail(0), "");
        assert_eq!(tail(1), "unfinished");
        assert_eq!(tail(2), "three\nunfinished");
        assert_eq!(tail(3), "two\nthree\nunfinished");
        assert_eq!(tail(9), "one\ntwo\nthree\nunfinished");
    }

    #[test]
    fn lines_that_began_in_a_window_of_time_are_whole() {
        use LogStream::{Stderr, Stdout};
        let said = [
            (1, Stdout, "one\ntw"),
            (2, Stderr, "error\n"),
            (3, Stdout, "o\nthree\nfo"),
            (4, Stdout, "ur\nfive\n"),
        ];
        let shown = |since, until| {
            let at = |seconds: Option<u64>| seconds.map(Duration::from_secs);
            let mut window = Window::new(at(since), at(until));
            let pieces = said.iter().flat_map(|(at, stream, text)| {
                window.pieces(&LogRecord {
                    stream: *stream,
                    at: Duration::from_secs(*at),
                    bytes: text.as_bytes().to_vec(),
                    missing: 0,
                })
            });
            let bytes = pieces.flat_map(|piece| piece.bytes).collect();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(shown(None, None), "one\ntwerror\no\nthree\nfour\nfive\n");
        assert_eq!(shown(Some(3), None), "three\nfour\nfive\n");
        assert_eq!(shown(None, Some(1)), "one\ntwo\n");
        assert_eq!(shown(Some(2), Some(3)), "error\nthree\nfour\n");
    }

    #[test]
    fn a_gap_is_shown_if_it_is_in_the_window() {
        let gap = LogRecord {
            stream: LogStream::Stdout,
            at: Duration::from_secs(2),
            bytes: Vec::new(),
            missing: 7,
        };
        let missing = |since| {
            let mut window = Window::new(since, None);
            let pieces = window.pieces(&gap);
            pieces.iter().map(|piece| piece.missing).sum::<u64>()
        };
        assert_eq!(missing(None), 7);
        assert_eq!(missing(Some(Duration::from_secs(3))), 0);
    }
}
