//! The tools that read what commands in the background write, and end them.

use std::time::Duration;

use micabox::words::Signal;
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use super::call::Call;
use super::command::seconds;
use super::ran::Ran;
use super::server::Server;
use super::tool::{Effect, Tool, Waiting};
use micabox_program::failure::Failure;

/// How long a command that is killed may take to end before the result says that it runs.
const GRACE: Duration = Duration::from_secs(5);

/// How long a call waits for a command's end at most.
const LONGEST: Duration = Duration::from_secs(60);

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

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

impl Waiting for ReadOutput {
    async fn call(self, server: &Server, call: &Call) -> Result<Ran, Failure> {
        let wait = longest(seconds("wait", self.wait)?);
        let job = server.background.job(self.command)?;
        tokio::select! {
            // The client will not see what is taken now.
            () = call.cancelled() => return Err(Failure::new("cancelled")),
            _ = timeout(wait, job.ended()) => {}
        }
        Ok(Ran::new(Some(self.command), job.news()?))
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

    fn readable(ran: &Ran) -> Vec<String> {
        vec![ran.readable()]
    }
}

impl Waiting for KillCommand {
    async fn call(self, server: &Server, _call: &Call) -> Result<Ran, Failure> {
        let name = self.signal.as_deref().unwrap_or("KILL");
        let Signal(signal) = name
            .parse()
            .map_err(|error| Failure::new(format!("`signal`: {error}: {name}")))?;
        let job = server.background.job(self.command)?;
        job.signal(signal);
        // The result says whether it runs.
        let _ = timeout(GRACE, job.ended()).await;
        Ok(Ran::new(Some(self.command), job.news()?))
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
