//! Commands of servers before this one. They go on without a server; their sandbox's owner has a note of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use micabox_async::{ExecOptions, Stdio};
use micabox_ground::{clock, lock};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::table::Processes;
use crate::e2b::places::Places;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// How long an owner may take to list a sandbox's commands, and to attach to them.
const ANSWER: Duration = Duration::from_secs(30);

/// Most bytes of a note.
const MOST: usize = 64 << 10;

/// Most bytes of a word in a note that has no room for all.
const SHORT: usize = 4 << 10;

/// What is said of a command that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// As the client gave it.
    #[serde(rename = "e2b")]
    pub config: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Milliseconds since this machine's start at which its time is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

impl Note {
    /// The note of a command that may take so long from now.
    pub fn new(config: Value, tag: Option<String>, time: Option<Duration>) -> Self {
        let until = time.map(|time| millis(since_start().saturating_add(time)));
        Self { config, tag, until }
    }

    /// How long it may still take.
    pub fn left(&self) -> Option<Duration> {
        let until = Duration::from_millis(self.until?);
        Some(until.saturating_sub(since_start()))
    }

    /// Its text. Where that is too long, arguments are left out, and other servers don't show them.
    pub fn text(&self) -> String {
        let text = |note: &Self| serde_json::to_string(note).unwrap_or_default();
        let whole = text(self);
        if whole.len() <= MOST {
            return whole;
        }
        let program = self.config.get("cmd").and_then(Value::as_str);
        let program: String = program.unwrap_or_default().chars().take(SHORT).collect();
        text(&Self {
            config: json!({"cmd": program, "args": [], "envs": {}}),
            tag: self.tag.clone().filter(|tag| tag.len() <= SHORT),
            until: self.until,
        })
    }
}

/// All processes of a machine have this clock in common, and it can't be set.
fn since_start() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The sandboxes of earlier servers whose commands are known.
#[derive(Debug)]
pub struct Known {
    /// When this server began.
    begun: Duration,
    /// By ID.
    all: Mutex<HashMap<String, Arc<OnceCell<()>>>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            begun: clock::now(),
            all: Mutex::default(),
        }
    }
}

impl Known {
    /// Returns whether a sandbox's commands are known; None for one that has none of other servers.
    fn of(&self, served: &Served) -> Option<Arc<OnceCell<()>>> {
        let mut all = self.lock();
        if let Some(known) = all.get(served.id()) {
            return Some(Arc::clone(known));
        }
        let is_earlier = served.since() <= self.begun.as_secs();
        is_earlier.then(|| Arc::clone(all.entry(served.id().to_owned()).or_default()))
    }

    /// Has a sandbox's commands looked for once more.
    pub fn again(&self, sandbox: &str) {
        self.lock().insert(sandbox.to_owned(), Arc::default());
    }

    /// Forgets a sandbox that is gone.
    pub fn forget(&self, sandbox: &str) {
        self.lock().remove(sandbox);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<OnceCell<()>>>> {
        lock(&self.all)
    }
}

impl Processes {
    /// Takes over the commands of earlier servers, when a sandbox's commands are asked for first.
    pub async fn take_over(self: &Arc<Self>, places: &Places, served: &Served) {
        let Some(known) = self.known.of(served) else {
            return;
        };
        let attach = || async {
            let late = |_| Problem::new(Kind::Deadline, "the sandbox's owner does not answer");
            timeout(ANSWER, self.attach(places, served))
                .await
                .map_err(late)?
        };
        // What fails is tried again: the call that this is for says what is wrong with the sandbox.
        let _ = known.get_or_try_init(attach).await;
    }

    async fn attach(self: &Arc<Self>, places: &Places, served: &Served) -> Result<(), Problem> {
        let sandbox = served.connect().await?;
        let commands = sandbox.commands();
        for command in commands.noted().await? {
            let Ok(note) = serde_json::from_str::<Note>(&command.note) else {
                continue; // another program's
            };
            if self.has(served.id(), command.pid) {
                continue; // of an attempt that failed later
            }
            let place = places.take(served.id())?;
            // Clients that receive its output attach themselves.
            let input = ExecOptions {
                stdin: Stdio::Piped,
                ..ExecOptions::default()
            };
            // One that fails has ended meanwhile.
            if let Ok(mut running) = commands.attach_with(command.pid, input).await
                && !self.has(served.id(), command.pid)
            {
                self.follow(sandbox.clone(), &mut running, note, place);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_a_long_one_is_cut() {
        let config = json!({"cmd": "/bin/bash", "args": ["-c", "true"]});
        let time = Some(Duration::from_secs(100));
        let note = Note::new(config.clone(), Some("tag".to_owned()), time);
        let read: Note = serde_json::from_str(&note.text()).unwrap();
        let left = read.left().unwrap().as_secs();
        assert!((98..=100).contains(&left), "{left}");
        assert_eq!((read.config, read.tag.as_deref()), (config, Some("tag")));

        let long = json!({"cmd": "a", "args": ["x".repeat(MOST)]});
        let text = Note::new(long, Some("tag".to_owned()), None).text();
        assert!(text.len() < 100, "{text}");
        let huge = "ü".repeat(MOST);
        let config = json!({"cmd": huge, "args": [huge]});
        assert!(Note::new(config, Some(huge), None).text().len() < MOST);
        let read: Note = serde_json::from_str(&text).unwrap();
        assert_eq!((read.tag.as_deref(), read.left()), (Some("tag"), None));
        for other in ["", "{}", "[]", "of another program"] {
            serde_json::from_str::<Note>(other).unwrap_err();
        }
    }
}
