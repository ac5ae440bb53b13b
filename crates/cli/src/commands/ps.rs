//! `mica ps`

use micabox::{Record, Status};
use serde::Serialize;

use crate::output::{Table, ago, print, print_json};
use crate::{Outcome, settings};

/// List sandboxes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Include sandboxes that have ended
    #[arg(short, long)]
    all: bool,

    /// Print only IDs
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

/// Lists sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let mut records = settings::sandboxes(&store)?.list()?;
    records.retain(|record| args.all || record.status.is_live());
    records.reverse();
    if args.json {
        print_json(&records.iter().map(Json::from).collect::<Vec<_>>())?;
    } else if args.quiet {
        let ids = records
            .iter()
            .map(|record| format!("{}\n", record.short_id()));
        print(&ids.collect::<String>())?;
    } else {
        print(&table(&records))?;
    }
    Ok(0)
}

/// A record with its status as text.
#[derive(Serialize)]
struct Json<'a> {
    state: String,
    #[serde(flatten)]
    record: &'a Record,
}

impl<'a> From<&'a Record> for Json<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            state: state(&record.status).to_owned(),
            record,
        }
    }
}

fn state(status: &Status) -> &'static str {
    match status {
        Status::Starting => "starting",
        Status::Running { .. } => "running",
        Status::Exited { .. } => "exited",
        Status::Dead => "dead",
    }
}

fn table(records: &[Record]) -> String {
    const MAX_COMMAND: usize = 40;
    let mut table = Table::new(&["ID", "NAME", "IMAGE", "COMMAND", "CREATED", "STATUS"]);
    for record in records {
        let mut command: String = record.command.chars().take(MAX_COMMAND).collect();
        if command.len() < record.command.len() {
            command.push('…');
        }
        table.row([
            record.short_id().to_owned(),
            record.name.clone(),
            record.base.to_string(),
            command,
            ago(record.created),
            match &record.status {
                Status::Exited { code, at, .. } => format!("exited ({code}) {}", ago(*at)),
                Status::Running { since } => format!("up since {}", ago(*since)),
                status => state(status).to_owned(),
            },
        ]);
    }
    table.render()
}
