//! `mica stats`

use std::time::{Duration, Instant};

use micabox::{Record, SandboxRef, Sandboxes, Stats};
use serde::Serialize;

use crate::template::{self, Fields, Row, Template};
use micabox_program::failure::{Failure, Outcome, print_all};
use micabox_program::output::{
    Table, print, print_json_line, raw, size, stdout_is_terminal, write_stdout,
};
use micabox_program::settings;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The terminal's sequence that moves to the upper left and clears what is below.
const HOME: &[u8] = b"\x1b[H\x1b[J";

/// Show what running sandboxes use, every second
///
/// CPU is that of the last second, 100 % for each processor of this machine. MEMORY is a sandbox's
/// own; SHARED is that of files which sandboxes have in common, such as their image's. NET is what was
/// received and sent, DISK what was read and written, since the start. `-` is what nothing measures or
/// limits, as the memory of a sandbox on this machine's kernel without a control group.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show them once
    #[arg(long)]
    no_stream: bool,

    #[arg(long, value_name = "FORMAT", conflicts_with = "json", help = template::HELP)]
    format: Option<String>,

    /// Print a JSON array a look, each on a line
    #[arg(long)]
    json: bool,

    /// Print whole IDs
    #[arg(long)]
    no_trunc: bool,

    /// Names or IDs [default: all that run]
    #[arg(value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

/// What a sandbox uses, and when that was.
pub struct Look {
    pub record: Record,
    pub stats: Stats,
    at: Instant,
}

impl Look {
    /// Returns the most bytes of memory that it can have, if anything keeps it from more.
    pub fn memory_limit(&self) -> Option<u64> {
        let limit = u64::from(self.record.spec.machine.memory_mib) << 20;
        self.stats.memory_limited.then_some(limit)
    }
}

#[derive(Serialize)]
struct Json<'a> {
    id: &'a str,
    name: &'a str,
    /// Of one processor.
    cpu_percent: f64,
    memory_limit: Option<u64>,
    #[serde(flatten)]
    stats: &'a Stats,
}

/// Shows what sandboxes use.
pub fn execute(args: &Args) -> Outcome {
    let template = Template::wanted(args.format.as_deref(), FIELDS)?;
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    // What is named must run.
    let look = || -> Result<Vec<Look>, Failure> {
        let (looks, failures) = looks(&args.wanted(&sandboxes)?);
        let is_named = !args.sandboxes.is_empty();
        if is_named && !failures.is_empty() && (args.no_stream || looks.is_empty()) {
            print_all(&failures);
            return Err(Failure::printed(1));
        }
        Ok(looks)
    };
    let mut before = look()?;
    loop {
        std::thread::sleep(INTERVAL);
        let now = look()?;
        let used: Vec<_> = now
            .iter()
            .map(|look| (look, percent(look, &before)))
            .collect();
        if args.json {
            let all = used.iter().map(|(look, cpu_percent)| Json {
                id: &look.record.id,
                name: &look.record.name,
                cpu_percent: *cpu_percent,
                memory_limit: look.memory_limit(),
                stats: &look.stats,
            });
            if !print_json_line(&all.collect::<Vec<_>>())? {
                return Ok(0);
            }
        } else {
            if !args.no_stream && stdout_is_terminal() {
                write_stdout(HOME)?;
            }
            match &template {
                Some(template) => template.print(&args.rows(&used))?,
                None => print(&args.table(&used))?,
            }
        }
        if args.no_stream || raw::is_stdout_closed() {
            return Ok(0);
        }
        before = now;
    }
}

impl Args {
    fn wanted(&self, sandboxes: &Sandboxes) -> Result<Vec<SandboxRef>, Failure> {
        if !self.sandboxes.is_empty() {
            let names = self.sandboxes.iter();
            return Ok(names
                .map(|name| sandboxes.get(name))
                .collect::<Result<_, _>>()?);
        }
        running(sandboxes)
    }

    fn id(&self, record: &Record) -> String {
        if self.no_trunc {
            record.id.clone()
        } else {
            record.short_id().to_owned()
        }
    }

    fn rows<'a>(&self, used: &[(&'a Look, f64)]) -> Vec<Used<'a>> {
        let rows = used.iter().map(|(look, percent)| Used {
            id: self.id(&look.record),
            look,
            percent: *percent,
        });
        rows.collect()
    }

    fn table(&self, used: &[(&Look, f64)]) -> String {
        let mut table = Table::new(&[
            "ID",
            "NAME",
            ">CPU",
            ">MEMORY",
            ">LIMIT",
            ">SHARED",
            "NET IN / OUT",
            "DISK READ / WRITTEN",
        ]);
        for (look, percent) in used {
            let Look { record, stats, .. } = look;
            table.row([
                self.id(record),
                record.name.clone(),
                format!("{percent:.1} %"),
                known(stats.own_memory),
                known(look.memory_limit()),
                known(stats.shared_memory),
                pair(stats.network_received, stats.network_sent),
                pair(stats.disk_read, stats.disk_written),
            ]);
        }
        table.render()
    }
}

/// Docker's fields, those that a sandbox has.
const FIELDS: Fields = &[
    ("ID", "ID"),
    ("Container", "CONTAINER"),
    ("Name", "NAME"),
    ("CPUPerc", ">CPU"),
    ("MemUsage", "MEMORY / LIMIT"),
    ("NetIO", "NET IN / OUT"),
    ("BlockIO", "DISK READ / WRITTEN"),
];

/// A row of the list.
struct Used<'a> {
    id: String,
    look: &'a Look,
    percent: f64,
}

impl Row for Used<'_> {
    fn field(&self, name: &str) -> String {
        let Look { record, stats, .. } = self.look;
        match name {
            "ID" | "Container" => self.id.clone(),
            "Name" => record.name.clone(),
            "CPUPerc" => format!("{:.2}%", self.percent),
            "MemUsage" => {
                let limit = known(self.look.memory_limit());
                format!("{} / {limit}", known(stats.own_memory))
            }
            "NetIO" => pair(stats.network_received, stats.network_sent),
            "BlockIO" => pair(stats.disk_read, stats.disk_written),
            _ => String::new(),
        }
    }
}

/// Formats a number of bytes, if it is known.
fn known(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), size)
}

/// Formats what came and what went, if both are known.
fn pair(a: Option<u64>, b: Option<u64>) -> String {
    match a.zip(b) {
        Some((a, b)) => format!("{} / {}", size(a), size(b)),
        None => "-".to_owned(),
    }
}

/// Returns all sandboxes that run.
pub fn running(sandboxes: &Sandboxes) -> Result<Vec<SandboxRef>, Failure> {
    let records = sandboxes.list()?.into_iter();
    let live = records.filter(|record| record.status.is_live());
    // One that has ended meanwhile is not missed.
    Ok(live
        .filter_map(|record| sandboxes.get(&record.id).ok())
        .collect())
}

/// Asks all owners at once: one that hangs delays no other.
pub fn looks(sandboxes: &[SandboxRef]) -> (Vec<Look>, Vec<Failure>) {
    let look = |sandbox: &SandboxRef| {
        let stats = sandbox.stats()?;
        Ok::<_, micabox::Error>(Look {
            record: sandbox.record().clone(),
            stats,
            at: Instant::now(),
        })
    };
    let (mut looks, mut failures) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let threads = sandboxes.iter();
        let threads: Vec<_> = threads
            .map(|sandbox| scope.spawn(move || look(sandbox)))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(Ok(look)) => looks.push(look),
                Ok(Err(error)) => failures.push(error.into()),
                Err(_) => failures.push(Failure::new("a thread has died")),
            }
        }
    });
    (looks, failures)
}

/// Returns the share of a processor that a sandbox has used since the look before.
fn percent(now: &Look, before: &[Look]) -> f64 {
    let same = before.iter().find(|look| look.record.id == now.record.id);
    let Some(before) = same else {
        return 0.0;
    };
    let used = now
        .stats
        .processor_time
        .saturating_sub(before.stats.processor_time);
    let micros = now
        .at
        .saturating_duration_since(before.at)
        .as_micros()
        .max(1);
    100.0 * used as f64 / micros as f64
}
