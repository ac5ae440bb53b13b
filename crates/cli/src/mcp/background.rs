//! Commands that run in the background, and the tools that read and end them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use micabox::ErrorKind;
use micabox::words::Signal;
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;

use super::Server;
use super::call::Call;
use super::command::{Ran, seconds};
use super::job::Job;
use super::tool::{Effect, Tool};
use crate::failure::Failure;

/// Most commands whose output is kept; those that have ended longest ago make room.
const KEPT: usize = 64;

/// How long a command that is killed may take to end before the result says that it runs.
const GRACE: Duration = Duration::from_secs(5);

/// How long a call waits for a command's end at most.
const LONGEST: Duration = Duration::from_secs(60);

/// The commands of a session, by their numbers.
#[derive(Debug, Default)]
pub struct Background(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
}

impl Background {
    /// Keeps a command that `start` starts.
    pub fn start(
        &self,
        start: impl FnOnce() -> Result<Arc<Job>, Failure>,
        call: &Call,
    ) -> Result<Ran, Failure> {
        let job = start()?;
        if call.is_cancelled() {
            // Its client will not learn its number.
            job.kill();
            return Err(Failure::new("cancelled"));
        }
        let mut kept = self.lock();
        if kept.jobs.len() >= KEPT {
            let mut jobs = kept.jobs.iter();
            let ended = jobs.find(|(_, job)| job.has_ended());
            let Some(number) = ended.map(|(number, _)| *number) else {
                job.kill();
                return Err(
                    Failure::new(format!("{KEPT} commands run in the background"))
                        .hint("kill_command ends one"),
                );
            };
            kept.jobs.remove(&number);
        }
        kept.last += 1;
        let number = kept.last;
        kept.jobs.insert(number, Arc::clone(&job));
        drop(kept);
        Ok(Ran::new(Some(number), job.news()?))
    }

    fn job(&self, number: u64) -> Result<Arc<Job>, Failure> {
        let kept = self.lock();
        let job = kept.jobs.get(&number).map(Arc::clone);
        job.ok_or_else(|| {
            let what = format!("no command {number} in the background of this session");
            Failure::of_kind(ErrorKind::NotFound, what)
                .hint("run_command with `background` starts one and says its number")
        })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ReadOutput {
    /// The number of a command in the background.
    command: u64,
    /// Seconds to wait for the command's end, 60 at most; none unless given. The result says whether it runs then.
    wait: Option<f64>,
}

impl Tool for ReadOutput {
    const NAME: &'static str = "read_output";
    const DESCRIPTION: &'static str = "Reads what a command in the background has written since the last time, and \
        its exit code if it has ended.";
    const EFFECT: Effect = Effect::Reads;
    type Output = Ran;

    fn waits(arguments: &JsonObject) -> bool {
        arguments.contains_key("wait")
    }

    fn call(self, server: &Server, call: &Call) -> Result<Ran, Failure> {
        let wait = longest(seconds("wait", self.wait)?);
        let job = server.background.job(self.command)?;
        let woken = Arc::clone(&job);
        let _watch = call.when_cancelled(move || woken.wake());
        job.wait(Instant::now().checked_add(wait), || !call.is_cancelled());
        if call.is_cancelled() {
            // The client will not see what is taken now.
            return Err(Failure::new("cancelled"));
        }
        Ok(Ran::new(Some(self.command), job.news()?))
    }

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

/// Returns how long a call waits that was told to wait so long.
fn longest(wait: Option<Duration>) -> Duration {
    wait.unwrap_or_default().min(LONGEST)
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct KillCommand {
    /// The number of a command in the background.
    command: u64,
    /// The signal, such as TERM or INT; KILL unless given.
    signal: Option<String>,
}

impl Tool for KillCommand {
    const NAME: &'static str = "kill_command";
    const DESCRIPTION: &'static str = "Sends a signal to a command in the background and to what it has started, \
        and reads what it has written since the last time.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Ran;

    fn call(self, server: &Server, _call: &Call) -> Result<Ran, Failure> {
        let name = self.signal.as_deref().unwrap_or("KILL");
        let Signal(signal) = name
            .parse()
            .map_err(|error| Failure::new(format!("`signal`: {error}: {name}")))?;
        let job = server.background.job(self.command)?;
        job.signal(signal);
        job.wait(Instant::now().checked_add(GRACE), || true);
        Ok(Ran::new(Some(self.command), job.news()?))
    }

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_a_minute_at_most() {
        let seconds = |given| longest(seconds("wait", given).unwrap()).as_secs();
        assert_eq!([None, Some(30.0), Some(1e18)].map(seconds), [0, 30, 60]);
    }
}
