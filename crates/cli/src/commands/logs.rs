//! `mica logs`

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::time::Duration;

use micabox::{LogReader, LogRecord, LogStream};

use crate::failure::Failure;
use crate::output::{raw, rfc3339};
use crate::{Outcome, settings};

/// Interval of reads while a log is followed.
const POLL: Duration = Duration::from_millis(50);

/// Show the output of a detached sandbox's command
///
/// The last 8 to 16 MB of it are kept, until `mica rm`. The output is printed unchanged, control
/// characters included.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Follow the log until the sandbox ends
    #[arg(short, long)]
    follow: bool,

    /// Show only this many lines from the end
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,

    /// Begin each line with its time
    #[arg(short, long)]
    timestamps: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Shows a log.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let Some(mut log) = sandboxes.get(&args.sandbox)?.log()? else {
        let message = format!("sandbox {} has no log", args.sandbox);
        return Err(
            Failure::new(message).hint("only of `mica run -d` and `mica start` there is one")
        );
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
    if let Some(tail) = args.tail {
        for record in last(|| log.next_record(), tail)? {
            lines.write(&record)?;
        }
    }
    loop {
        // Before the log is read, so that nothing written until the end is missed.
        let is_live = args.follow && log.is_live()?;
        while let Some(record) = log.next_record()? {
            lines.write(&record)?;
        }
        if !is_live {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the last `tail` lines of the log so far, in the order of their ends: between the pieces
/// of one stream's line, there may be pieces of the other stream's.
fn last<E>(
    mut next: impl FnMut() -> Result<Option<LogRecord>, E>,
    tail: usize,
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
        let line = match record.stream {
            LogStream::Stdout => &mut out,
            LogStream::Stderr => &mut err,
        };
        for piece in record.bytes.split_inclusive(|byte| *byte == b'\n') {
            line.push(LogRecord {
                bytes: piece.to_vec(),
                ..record
            });
            if piece.ends_with(b"\n") {
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
            });
            let next = || Ok::<_, Infallible>(records.next());
            let Ok(last) = last(next, count);
            let text: Vec<u8> = last.into_iter().flat_map(|record| record.bytes).collect();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(tail(0), "");
        assert_eq!(tail(1), "unfinished");
        assert_eq!(tail(2), "three\nunfinished");
        assert_eq!(tail(3), "two\nthree\nunfinished");
        assert_eq!(tail(9), "one\ntwo\nthree\nunfinished");
    }
}
