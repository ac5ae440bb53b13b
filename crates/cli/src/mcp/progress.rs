//! How far a call is: what is known last is sent, and not more often than a person can read.

use std::sync::Arc;
use std::time::Duration;

use micabox_image::progress::{Progress, Silent};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::sync::watch;

use crate::progress::{Phase, Report, Reports};
use crate::visible;

/// Time between two notifications.
const INTERVAL: Duration = Duration::from_millis(100);

/// Most characters of a message.
const MESSAGE: usize = 200;

/// How far a call is.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// How much is done. A client is only told of more.
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

    /// Returns the same words later.
    pub fn later(&self, done: f64) -> Self {
        Self {
            done,
            ..self.clone()
        }
    }
}

/// Tells the client of each step, or of the last of those that follow each other closely.
pub async fn report(
    mut steps: watch::Receiver<Step>,
    peer: Peer<RoleServer>,
    token: ProgressToken,
) {
    let mut told = f64::NEG_INFINITY;
    while steps.changed().await.is_ok() {
        let step = steps.borrow_and_update().clone();
        if step.done <= told {
            continue;
        }
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
