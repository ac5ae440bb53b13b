//! How far a call is: what is known last is sent, and not more often than a person can read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_image::progress::{Progress, Silent};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::sync::watch;

use micabox_program::progress::{Phase, Report, Reports};
use micabox_program::visible;

/// Time between two notifications.
const INTERVAL: Duration = Duration::from_millis(100);

/// How often a client is told at least that a call goes on: it may give up what it hears nothing of.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// By how much what is done grows where nothing more is known: each notification has to have more.
const LITTLE: f64 = 0.001;

/// Most characters of a message.
const MESSAGE: usize = 200;

/// How far a call is.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// How much is done.
    pub done: f64,
    /// How much there is to do, if that is known.
    pub total: Option<f64>,
    message: String,
}

impl Step {
    /// Makes one. The message may be foreign text.
    pub fn new(done: f64, total: Option<f64>, message: &str) -> Self {
        let message: String = message.chars().take(MESSAGE).collect();
        Self {
            done,
            total,
            message: visible::line(&message).into_owned(),
        }
    }
}

/// Tells the client of each step, or of the last of those that follow each other closely; and of the last one again where
/// nothing new is known.
pub async fn report(
    mut steps: watch::Receiver<Step>,
    peer: Peer<RoleServer>,
    token: ProgressToken,
) {
    let started = Instant::now();
    let mut told = f64::NEG_INFINITY;
    loop {
        let changed = tokio::time::timeout(HEARTBEAT, steps.changed()).await;
        let mut step = steps.borrow_and_update().clone();
        match changed {
            Ok(Ok(())) if step.total.is_some() && step.done <= told => continue,
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            // What has no measure is measured in seconds.
            Err(_) if step.total.is_none() => step.done = started.elapsed().as_secs_f64(),
            Err(_) => {}
        }
        step.done = step.done.max(told + LITTLE);
        told = step.done;
        let mut said = ProgressNotificationParam::new(token.clone(), step.done);
        said.total = step.total;
        if !step.message.is_empty() {
            said.message = Some(step.message);
        }
        if peer.notify_progress(said).await.is_err() {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Tells of images that are pulled: how many bytes of their layers have arrived.
pub fn of_pulls(steps: Option<watch::Sender<Step>>) -> Arc<dyn Progress> {
    let Some(steps) = steps else {
        return Arc::new(Silent);
    };
    Arc::new(Reports::new(move |report| {
        let Report::Progress(pulling) = report else {
            return;
        };
        let doing = match pulling.phase {
            Phase::Resolving => "looking for the image",
            Phase::Pulling => "pulling layers",
            Phase::Merging => "merging layers",
            Phase::Done => "pulled",
        };
        let total = (pulling.total > 0).then_some(pulling.total as f64);
        steps.send_replace(Step::new(pulling.done as f64, total, doing));
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_short_and_visible() {
        let step = Step::new(0.0, None, &"\x1b[2J".repeat(1000));
        assert!(step.message.starts_with("\\x1b[2J") && step.message.len() < 1000);
    }
}
