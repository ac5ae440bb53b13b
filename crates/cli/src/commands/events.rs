//! `mica events`

use std::time::{Duration, Instant};

use micabox::{History, SandboxEvent};
use micabox_ground::clock;
use serde_json::{Value, json};

use crate::document::Document;
use crate::moment;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json_line, raw, rfc3339, write_stdout};
use micabox_program::settings;

/// Returns an event's type in Docker's words.
fn type_of(event: &SandboxEvent) -> &'static str {
    if event.id.is_empty() {
        "image"
    } else {
        "container"
    }
}

/// Interval of looks at all sandboxes, which notes those whose owner was killed.
const LOOK: Duration = Duration::from_secs(1);

/// Show what happens to sandboxes: create, start, exec, exec_die, kill, pause, unpause, rename,
/// update, stop, die, destroy; and read_error, of an image of theirs
///
/// The last few thousand events are kept, and shown with --since. Without --until, waits for more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Begin with the events since then [10m, 2026-11-23T06:00:00Z, 1795413600]
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<Duration>,

    /// End with the events until then
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<Duration>,

    /// Show only events that match; may be repeated [event=die, sandbox=NAME, container=NAME, image=debian:12,
    /// label=NAME[=VALUE], type=container, type=image]
    #[arg(short, long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    filters: Vec<(Key, String)>,

    /// Print a line for each event, of Docker's placeholders [{{.Action}}, {{.Actor.ID}},
    /// {{.Actor.Attributes.name}}, {{json .}}, json]
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,

    /// Print each event as JSON on a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Event,
    Sandbox,
    Image,
    Label,
    Type,
}

/// Shows events.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let mut history = History::open(&store);
    let format = Document::wanted(args.format.as_deref())?;
    let since = args.since.unwrap_or_else(clock::now);
    let mut looked: Option<Instant> = None;
    loop {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            sandboxes.list()?;
        }
        // Looked at before the events: those until then have been read.
        let is_over = args.until.is_some_and(|until| until <= clock::now());
        for event in history.read()? {
            let time = Duration::new(event.time.try_into().unwrap_or(0), event.nanos);
            let is_in_time = time >= since && args.until.is_none_or(|until| time <= until);
            if is_in_time && args.matches(&event) {
                args.show(&event, format.as_ref())?;
            }
        }
        if is_over || raw::is_stdout_closed() {
            return Ok(0);
        }
        let left = args
            .until
            .map_or(LOOK, |until| until.saturating_sub(clock::now()));
        raw::wait(history.changes(), left.min(LOOK));
    }
}

impl Args {
    /// Returns whether an event matches a value of each key, and all labels.
    fn matches(&self, event: &SandboxEvent) -> bool {
        [Key::Event, Key::Sandbox, Key::Image, Key::Label, Key::Type]
            .iter()
            .all(|key| {
                let mut values = self
                    .filters
                    .iter()
                    .filter(|(other, _)| other == key)
                    .peekable();
                let is_so = |(_, value): &(Key, String)| match key {
                    Key::Event => event.action == *value,
                    Key::Sandbox => event.name == *value || event.id.starts_with(value.as_str()),
                    Key::Image => event.image == *value,
                    Key::Label => has_label(event, value),
                    // Docker's word for a sandbox.
                    Key::Type => value == type_of(event),
                };
                match key {
                    Key::Label => values.all(is_so),
                    _ => values.peek().is_none() || values.any(is_so),
                }
            })
    }

    fn show(&self, event: &SandboxEvent, format: Option<&Document>) -> Result<(), Failure> {
        if let Some(format) = format {
            return write_stdout(format.render(&as_docker_has_it(event))?.as_bytes());
        }
        if self.json {
            return print_json_line(event).map(drop);
        }
        let attributes = event.attributes.iter();
        let attributes = attributes.map(|(name, value)| format!(", {name}={value}"));
        let time = rfc3339(event.time.try_into().unwrap_or(0));
        let who = match type_of(event) {
            "image" => format!("(image={}", event.image),
            _ => format!("{} (name={}, image={}", event.id, event.name, event.image),
        };
        let line = format!(
            "{} {} {who}{})",
            time.replace('Z', &format!(".{:09}Z", event.nanos)),
            event.action,
            attributes.collect::<String>()
        );
        print(&format!("{}\n", line.replace('\n', " ")))
    }
}

/// Returns whether an event has a label, as `NAME` or `NAME=VALUE`.
fn has_label(event: &SandboxEvent, label: &str) -> bool {
    let (name, expected) = match label.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (label, None),
    };
    let found = event.attributes.get(name);
    found.is_some_and(|value| expected.is_none_or(|expected| value == expected))
}

/// Returns an event with Docker's fields.
fn as_docker_has_it(event: &SandboxEvent) -> Value {
    let mut attributes = event.attributes.clone();
    let (id, name) = match type_of(event) {
        "image" => (&event.image, &event.image),
        _ => (&event.id, &event.name),
    };
    attributes.insert("name".into(), name.clone());
    attributes.insert("image".into(), event.image.clone());
    let nanos = event
        .time
        .saturating_mul(1_000_000_000)
        .saturating_add(event.nanos.into());
    json!({
        "Type": type_of(event),
        "Action": event.action,
        "Actor": {"ID": id, "Attributes": attributes},
        "scope": "local",
        "time": event.time,
        "timeNano": nanos,
        "status": event.action,
        "id": id,
        "from": event.image,
        "Status": event.action,
        "ID": id,
        "From": event.image,
        "Time": event.time,
        "TimeNano": nanos,
    })
}

fn filter(text: &str) -> Result<(Key, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let key = match key {
        "event" => Key::Event,
        "sandbox" | "container" => Key::Sandbox,
        "image" => Key::Image,
        "label" => Key::Label,
        "type" => Key::Type,
        _ => {
            return Err(
                "no such key; there are event, sandbox, container, image, label, type".into(),
            );
        }
    };
    Ok((key, value.to_owned()))
}
