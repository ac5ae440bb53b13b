//! `mica metrics`

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use micabox::{PoolRecord, Record, Status};

use super::stats::{Look, looks, running};
use micabox_program::failure::Outcome;
use micabox_program::output::write_stdout;
use micabox_program::settings;

/// Print what all sandboxes of this machine use, in Prometheus' text format
///
/// One look at everything. A timer that writes it to a file for the node exporter's textfile
/// collector is enough to have it in Prometheus.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// A metric's type.
#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

/// Prints metrics.
pub fn execute(Args {}: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let records = sandboxes.list()?;
    // One that ends, or hangs, has no values.
    let (looks, _) = looks(&running(&sandboxes)?);
    let mut text = page(&records, &looks);
    let pools = PoolRecord::list(&store);
    let rows = pools.iter().map(|pool| {
        (
            labels(&[("image", &pool.base.to_string())]),
            Some(pool.size),
        )
    });
    let help = "Machines that a pool keeps ready";
    family(&mut text, "mica_pool_size", Kind::Gauge, help, rows);
    write_stdout(text.as_bytes())?;
    Ok(0)
}

fn page(records: &[Record], looks: &[Look]) -> String {
    let mut text = String::new();
    let states = ["created", "starting", "running", "paused", "exited", "dead"];
    let mut counts: BTreeMap<_, u64> = states.map(|state| (state, 0)).into();
    for record in records {
        *counts.entry(super::ps::state(&record.status)).or_default() += 1;
    }
    let counts = counts.iter();
    let rows = counts.map(|(state, count)| (labels(&[("state", state)]), Some(*count)));
    let help = "Sandboxes by state";
    family(&mut text, "mica_sandboxes", Kind::Gauge, help, rows);
    let live = || records.iter().filter(|record| record.status.is_live());
    let rows = live().map(|record| (described(record), Some(1)));
    let help = "What a running sandbox is";
    family(&mut text, "mica_sandbox_info", Kind::Gauge, help, rows);
    let rows = live().map(|record| (of(record), started(record)));
    let (name, help) = (
        "mica_sandbox_start_time_seconds",
        "When a sandbox was started, seconds since 1970-01-01 UTC",
    );
    family(&mut text, name, Kind::Gauge, help, rows);
    let rows = looks.iter().map(|look| {
        let seconds = look.stats.processor_time as f64 / 1e6;
        (of(&look.record), Some(seconds))
    });
    let (name, help) = (
        "mica_sandbox_cpu_seconds_total",
        "Processor time of a sandbox since its start",
    );
    family(&mut text, name, Kind::Counter, help, rows);
    for (name, kind, help, value) in OF_LOOKS {
        let rows = looks.iter().map(|look| (of(&look.record), value(look)));
        family(&mut text, &format!("mica_sandbox_{name}"), kind, help, rows);
    }
    text
}

/// Returns a metric's value for a sandbox, if it has one.
type Value = fn(&Look) -> Option<u64>;

/// Metrics of what a sandbox uses: the name behind `mica_sandbox_`, the type, the help, and the value.
const OF_LOOKS: [(&str, Kind, &str, Value); 8] = [
    ("cpus", Kind::Gauge, "Virtual processors", |look| {
        let is_limited = look.stats.processors_limited;
        is_limited.then_some(look.record.cpus().into())
    }),
    (
        "memory_limit_bytes",
        Kind::Gauge,
        "Memory of the machine",
        Look::memory_limit,
    ),
    (
        "memory_own_bytes",
        Kind::Gauge,
        "Resident memory that is not of files",
        |look| look.stats.own_memory,
    ),
    (
        "memory_shared_bytes",
        Kind::Gauge,
        "Resident memory of files that sandboxes share",
        |look| look.stats.shared_memory,
    ),
    (
        "disk_read_bytes_total",
        Kind::Counter,
        "Bytes read from disks",
        |look| look.stats.disk_read,
    ),
    (
        "disk_written_bytes_total",
        Kind::Counter,
        "Bytes written to disks",
        |look| look.stats.disk_written,
    ),
    (
        "network_receive_bytes_total",
        Kind::Counter,
        "Bytes of received frames",
        |look| look.stats.network_received,
    ),
    (
        "network_transmit_bytes_total",
        Kind::Counter,
        "Bytes of sent frames",
        |look| look.stats.network_sent,
    ),
];

/// Returns when a sandbox was started, if it runs or is paused.
fn started(record: &Record) -> Option<i64> {
    match record.status {
        Status::Running { since } | Status::Paused { since } => Some(since),
        _ => None,
    }
}

/// Adds a metric with its values.
fn family<T: Display>(
    text: &mut String,
    name: &str,
    kind: Kind,
    help: &str,
    rows: impl Iterator<Item = (String, Option<T>)>,
) {
    let kind = match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
    for (labels, value) in rows {
        if let Some(value) = value {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
}

fn of(record: &Record) -> String {
    labels(&[("id", record.short_id()), ("name", &record.name)])
}

fn described(record: &Record) -> String {
    labels(&[
        ("id", record.short_id()),
        ("name", &record.name),
        ("image", &record.base.to_string()),
        ("state", super::ps::state(&record.status)),
    ])
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        // The format is bytes for programs, but people look at it.
        let value: String = value.chars().filter(|c| !c.is_control()).collect();
        format!("{name}=\"{value}\"")
    });
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labels_value_is_escaped() {
        assert_eq!(
            labels(&[("a", "x\\y\"z\n\u{1b}"), ("b", "")]),
            r#"{a="x\\y\"z\n",b=""}"#
        );
    }
}
