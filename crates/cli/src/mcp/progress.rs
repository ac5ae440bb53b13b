//! How far a call is: what is known last is sent, and not more often than a person can read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use micabox_image::Digest;
use micabox_image::progress::{Event, LayerState, Phase, Progress};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::sync::watch;

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

/// Images that are pulled: how many bytes of their layers have arrived.
#[derive(Debug)]
pub struct Pulls {
    steps: Option<watch::Sender<Step>>,
    layers: Mutex<Layers>,
}

#[derive(Debug, Default)]
struct Layers {
    /// Of each, how many bytes have arrived, and how many there are.
    each: HashMap<Digest, (u64, u64)>,
    done: u64,
    total: u64,
    doing: &'static str,
}

impl Pulls {
    /// None yet.
    pub fn new(steps: Option<watch::Sender<Step>>) -> Self {
        Self {
            steps,
            layers: Mutex::default(),
        }
    }
}

impl Layers {
    fn arrived(&mut self, layer: &Digest, bytes: impl FnOnce(u64) -> u64) {
        if let Some((done, size)) = self.each.get_mut(layer) {
            let now = bytes(*size).min(*size);
            // It may start over.
            self.done = self.done.saturating_sub(*done).saturating_add(now);
            *done = now;
        }
    }
}

impl Progress for Pulls {
    fn event(&self, event: Event<'_>) {
        let Some(steps) = &self.steps else {
            return;
        };
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Phase(phase) => {
                layers.doing = match phase {
                    Phase::Resolving => "looking for the image",
                    Phase::Layers => "pulling layers",
                    Phase::Publishing => "merging layers",
                    Phase::Done => "pulled",
                };
            }
            Event::Layers(sizes) => {
                for layer in sizes {
                    let size = layer.blob.size;
                    if layers.each.insert(layer.diff_id, (0, size)).is_none() {
                        layers.total = layers.total.saturating_add(size);
                    }
                }
            }
            Event::Layer { diff_id, state } => match state {
                LayerState::Received { bytes } => layers.arrived(diff_id, |_| bytes),
                LayerState::Present | LayerState::Done => layers.arrived(diff_id, |size| size),
                _ => return,
            },
            _ => return,
        }
        let total = (layers.total > 0).then_some(layers.total as f64);
        steps.send_replace(Step::new(layers.done as f64, total, layers.doing));
    }
}

#[cfg(test)]
mod tests {
    use micabox_image::Descriptor;
    use micabox_image::progress::Layer;

    use super::*;

    #[test]
    fn a_pull_is_as_far_as_its_layers_are() {
        let (steps, last) = watch::channel(Step::default());
        let pulls = Pulls::new(Some(steps));
        let layer = |byte: u8, size| Layer {
            diff_id: Digest::of(&[byte]),
            blob: Descriptor {
                media_type: String::new(),
                digest: Digest::of(&[byte, byte]),
                size,
            },
        };
        let layers = [layer(1, 100), layer(2, 50)];
        let received = |layer: usize, bytes| {
            let diff_id = &layers[layer].diff_id;
            let state = LayerState::Received { bytes };
            pulls.event(Event::Layer { diff_id, state });
        };
        pulls.event(Event::Phase(Phase::Layers));
        pulls.event(Event::Layers(&layers));
        received(0, 30);
        received(1, 50);
        let step = last.borrow().clone();
        assert_eq!((step.done, step.total), (80.0, Some(150.0)));
        assert_eq!(step.message, "pulling layers");
        // It starts over, and more arrives than was said.
        received(0, 10);
        assert_eq!(last.borrow().done, 60.0);
        received(0, 1000);
        assert_eq!(last.borrow().done, 150.0);
    }

    #[test]
    fn a_message_is_short_and_visible() {
        let step = Step::new(0.0, None, &"\x1b[2J".repeat(1000));
        assert!(step.message.starts_with("\\x1b[2J") && step.message.len() < 1000);
    }
}
