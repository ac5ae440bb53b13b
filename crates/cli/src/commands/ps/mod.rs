//! `mica ps`

mod filter;
mod row;

use micabox::{Record, Status};
use serde::Serialize;

use crate::template::Template;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{Table, ago, print, print_json, write_stderr};
use micabox_program::settings;

use filter::Filters;
use row::{FIELDS, Ps};

/// Most characters of a command in a table.
const MAX_COMMAND: usize = 40;

/// List sandboxes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Include sandboxes that do not run
    #[arg(short, long)]
    all: bool,

    /// Show only sandboxes that match; may be repeated [name=web, id=3f, label=app,
    /// label=app=web, status=running, ancestor=debian:12, exited=0, before=NAME, since=NAME,
    /// publish=80/tcp]
    #[arg(short, long = "filter", value_name = "KEY=VALUE")]
    filters: Vec<String>,

    /// Show the last sandboxes that were created, whether they run or not; -1 is as without
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = last)]
    last: Option<Last>,

    /// Show the last sandbox that was created, whether it runs or not
    #[arg(short, long, conflicts_with = "last")]
    latest: bool,

    /// Print whole IDs and commands
    #[arg(long)]
    no_trunc: bool,

    /// Print only IDs
    #[arg(short, long, conflicts_with_all = ["json", "format"])]
    quiet: bool,

    /// Print a line for each sandbox [{{.ID}} {{.Names}}, 'table {{.Names}}\t{{.Status}}',
    /// {{json .}}]
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

/// The value of `--last`; none for Docker's default, -1.
#[derive(Clone, Copy, Debug)]
struct Last(Option<usize>);

fn last(text: &str) -> Result<Last, &'static str> {
    match text {
        "-1" => Ok(Last(None)),
        text => match text.parse() {
            Ok(number) => Ok(Last(Some(number))),
            Err(_) => Err("expected a number, or -1 for no limit"),
        },
    }
}

/// Lists sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let template = Template::wanted(args.format.as_deref(), FIELDS)?;
    let filters = Filters::parse(&args.filters)?;
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let records = sandboxes.list()?;
    for path in sandboxes.unreadable()? {
        write_stderr(&format!(
            "mica: the record of a sandbox can't be read (is it another version's?); its disk is kept: {}\n",
            path.display()
        ));
    }
    let records = args.choose(&filters, &records)?;
    if args.json {
        print_json(
            &records
                .iter()
                .map(|record| Json::from(*record))
                .collect::<Vec<_>>(),
        )?;
    } else if args.quiet {
        let ids = records
            .iter()
            .map(|record| format!("{}\n", args.id(record)));
        print(&ids.collect::<String>())?;
    } else if let Some(template) = template {
        let rows: Vec<_> = records
            .iter()
            .map(|record| Ps {
                record,
                is_whole: args.no_trunc,
                store: store.root(),
            })
            .collect();
        template.print(&rows)?;
    } else {
        print(&args.table(&records))?;
    }
    Ok(0)
}

impl Args {
    /// Returns the wanted records, the newest first.
    fn choose<'a>(
        &self,
        filters: &Filters,
        records: &'a [Record],
    ) -> Result<Vec<&'a Record>, Failure> {
        let last = match self.last {
            Some(Last(last)) => last,
            None => self.latest.then_some(1),
        };
        let all = self.all || last.is_some() || filters.are_about_the_end();
        let mut chosen = filters.choose(records)?;
        chosen.retain(|record| all || record.status.is_live());
        chosen.reverse();
        chosen.truncate(last.unwrap_or(usize::MAX));
        Ok(chosen)
    }

    fn id<'a>(&self, record: &'a Record) -> &'a str {
        if self.no_trunc {
            &record.id
        } else {
            record.short_id()
        }
    }

    fn table(&self, records: &[&Record]) -> String {
        let mut table = Table::new(&["ID", "NAME", "IMAGE", "COMMAND", "CREATED", "STATUS"]);
        for record in records {
            table.row([
                self.id(record).to_owned(),
                record.name.clone(),
                record.base.to_string(),
                command(record, self.no_trunc),
                ago(record.created),
                row::status(&record.status),
            ]);
        }
        table.render()
    }
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

/// Returns the word for a status.
pub fn state(status: &Status) -> &'static str {
    match status {
        Status::Created => "created",
        Status::Starting => "starting",
        Status::Running { .. } => "running",
        Status::Paused { .. } => "paused",
        Status::Exited { .. } => "exited",
        Status::Dead => "dead",
    }
}

fn command(record: &Record, is_whole: bool) -> String {
    let most = if is_whole { usize::MAX } else { MAX_COMMAND };
    let mut command: String = record.command.chars().take(most).collect();
    if command.len() < record.command.len() {
        command.push('…');
    }
    command
}
