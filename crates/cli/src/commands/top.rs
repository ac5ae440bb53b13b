//! `mica top`

use std::time::Duration;

use micabox::GuestProcess;
use serde::Serialize;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{Table, print, print_json};
use micabox_program::settings;

/// List the processes in a running sandbox
///
/// The sandbox's agent lists them; the image needs no ps. As options of ps, -e, -f, aux and -o with
/// a list of columns are understood: pid, ppid, uid, stat, tty, time, etime, rss (KiB) and args.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print all fields as JSON
    #[arg(long)]
    json: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// Options of ps, or columns [-o pid,args]
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PS-OPTION"
    )]
    options: Vec<String>,
}

/// A process with times in seconds.
#[derive(Serialize)]
struct Json<'a> {
    pid: u32,
    parent: u32,
    uid: u32,
    state: char,
    terminal: Option<String>,
    time: f64,
    age: f64,
    resident: u64,
    command: &'a str,
}

/// Lists processes.
pub fn execute(args: &Args) -> Outcome {
    let columns = columns(&args.options).map_err(Failure::new)?;
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let mut processes = sandboxes.get(&args.sandbox)?.processes()?;
    processes.sort_by_key(|process| process.pid);
    if args.json {
        print_json(&processes.iter().map(Json::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let headings: Vec<_> = columns.iter().map(|column| column.heading()).collect();
    let mut table = Table::new(&headings);
    for process in &processes {
        table.row(columns.iter().map(|column| column.cell(process)));
    }
    print(&table.render())?;
    Ok(0)
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Pid,
    Parent,
    User,
    State,
    Terminal,
    Time,
    Age,
    Resident,
    Command,
}

use Column::{Age, Command, Parent, Pid, Resident, State, Terminal, Time, User};

/// As with `ps -ef`.
const FULL: [Column; 7] = [User, Pid, Parent, Age, Terminal, Time, Command];

/// As with `ps aux`.
const LONG: [Column; 8] = [User, Pid, Resident, Terminal, State, Age, Time, Command];

/// Parses options of ps.
fn columns(options: &[String]) -> Result<Vec<Column>, String> {
    let mut columns = FULL.to_vec();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-e" | "-f" | "-ef" | "-A" => {}
            "aux" | "-aux" => columns = LONG.to_vec(),
            "-o" | "-eo" => {
                let list = words.next().ok_or("-o needs a list of columns")?;
                columns = list.split(',').map(column).collect::<Result<_, _>>()?;
            }
            word => match word.strip_prefix("-o") {
                Some(list) => columns = list.split(',').map(column).collect::<Result<_, _>>()?,
                None => return Err(format!("`{word}` is not an option of ps that mica knows")),
            },
        }
    }
    Ok(columns)
}

fn column(name: &str) -> Result<Column, String> {
    Ok(match name {
        "pid" => Pid,
        "ppid" => Parent,
        "uid" | "user" | "euid" => User,
        "stat" | "state" | "s" => State,
        "tty" | "tt" => Terminal,
        "time" | "cputime" => Time,
        "etime" => Age,
        "rss" => Resident,
        "args" | "cmd" | "command" => Command,
        _ => return Err(format!("`{name}` is not a column that mica knows")),
    })
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Pid => ">PID",
            Parent => ">PPID",
            User => "UID",
            State => "STAT",
            Terminal => "TTY",
            Time => ">TIME",
            Age => ">ELAPSED",
            Resident => ">RSS",
            Command => "CMD",
        }
    }

    fn cell(self, process: &GuestProcess) -> String {
        match self {
            Pid => process.pid.to_string(),
            Parent => process.parent.to_string(),
            User => process.uid.to_string(),
            State => process.state.to_string(),
            Terminal => terminal(process).unwrap_or_else(|| "?".to_owned()),
            Time => clock(process.time, true),
            Age => clock(process.age, false),
            Resident => (process.resident / 1024).to_string(),
            Command => process.command.clone(),
        }
    }
}

fn terminal(process: &GuestProcess) -> Option<String> {
    process.terminal.map(|number| format!("pts/{number}"))
}

/// Formats a time as ps does: `[[days-]hours:]minutes:seconds`.
fn clock(time: Duration, with_hours: bool) -> String {
    let seconds = time.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let rest = format!("{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) if !with_hours => rest,
        (0, hours) => format!("{hours:02}:{rest}"),
        (days, hours) => format!("{days}-{hours:02}:{rest}"),
    }
}

impl<'a> From<&'a GuestProcess> for Json<'a> {
    fn from(process: &'a GuestProcess) -> Self {
        Self {
            pid: process.pid,
            parent: process.parent,
            uid: process.uid,
            state: process.state,
            terminal: terminal(process),
            time: process.time.as_secs_f64(),
            age: process.age.as_secs_f64(),
            resident: process.resident,
            command: &process.command,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_ps() {
        let parse = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            columns(&words)
        };
        assert_eq!(parse(&[]), Ok(FULL.to_vec()));
        assert_eq!(parse(&["-ef"]), Ok(FULL.to_vec()));
        assert_eq!(parse(&["aux"]), Ok(LONG.to_vec()));
        assert_eq!(parse(&["-o", "pid,args"]), Ok(vec![Pid, Command]));
        assert_eq!(parse(&["-eo", "rss"]), Ok(vec![Resident]));
        assert_eq!(parse(&["-opid"]), Ok(vec![Pid]));
        for wrong in [&["-o"][..], &["-o", ""], &["-o", "pid,x"], &["-H"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_are_those_of_ps() {
        let text = |seconds, with_hours| clock(Duration::from_secs(seconds), with_hours);
        assert_eq!(text(61, false), "01:01");
        assert_eq!(text(61, true), "00:01:01");
        assert_eq!(text(3600, false), "01:00:00");
        assert_eq!(text(90_061, true), "1-01:01:01");
    }
}
