//! `mica logs`

use std::io::{self, Write};
use std::time::Duration;

use micabox::{LogReader, LogRecord, LogStream};

use crate::failure::Failure;
use crate::output::rfc3339;
use crate::{Outcome, settings};

/// How often somebody who follows a log looks for more.
const POLL: Duration = Duration::from_millis(50);

/// Show what a detached sandbox's command has written
///
/// The last 8 to 16 MB of it are kept, until `mica rm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Go on until the sandbox ends
    #[arg(short, long)]
    follow: bool,

    /// Only so many lines from the end
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,

    /// Begin each line with the time at which it was written
    #[arg(short, long)]
    timestamps: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Shows a log.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let Some(mut log) = sandboxes.log(&args.sandbox)? else {
        let message = format!("sandbox {} has no log", args.sandbox);
        return Err(
            Failure::new(message).hint("only of `mica run -d` and `mica start` there is one")
        );
    };
    match show(args, &mut log) {
        Ok(()) => Ok(0),
        Err(Problem::Log(failure)) => Err(failure),
        // Whoever reads has seen enough.
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
        for record in last(log, tail)? {
            lines.write(&record)?;
        }
    }
    loop {
        // Asked first: what was written until the end is seen after it.
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

/// The last lines of what is there by now.
fn last(log: &mut LogReader, tail: usize) -> Result<Vec<LogRecord>, Problem> {
    let mut records = Vec::new();
    while let Some(record) = log.next_record()? {
        records.push(record);
    }
    let ends = records
        .iter()
        .enumerate()
        .rev()
        .flat_map(|(index, record)| {
            let bytes = record.bytes.iter().enumerate().rev();
            bytes.map(move |(at, byte)| (index, at, *byte))
        });
    // A line feed at the very end begins no line.
    let mut ends = ends.skip(1).filter(|(_, _, byte)| *byte == b'\n');
    let cut = match tail {
        0 => return Ok(Vec::new()),
        _ => ends.nth(tail - 1),
    };
    if let Some((index, at, _)) = cut {
        records.drain(..index);
        if let Some(first) = records.first_mut() {
            first.bytes.drain(..=at);
        }
    }
    Ok(records)
}

/// Where the lines of each stream begin.
struct Lines {
    timestamps: bool,
    /// Of stdout and stderr: the next byte begins a line.
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
            LogStream::Stdout => (out, &mut io::stdout().lock()),
            LogStream::Stderr => (err, &mut io::stderr().lock()),
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
