//! How far the pull of an image is, for programs: what `mica pull --progress json`, `mica serve` and `mica mcp` say
//! of it. docs/protocol.md describes the messages.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_image::Digest;
use micabox_image::progress::{self, Event, LayerState, Progress};
use serde::Serialize;

use crate::failure::cut;

/// Time between two reports about bytes.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is told about a pull.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PullReport"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Report<'a> {
    /// How far it is.
    Progress(&'a Pulling),
    /// One sentence for people.
    Notice {
        /// The sentence.
        message: &'a str,
    },
}

/// How far a pull is: all of it, so that what was said before need not be known. Where one request pulls several
/// images, bytes and layers are those of all until now.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pulling {
    /// Of the image that is pulled now.
    pub phase: Phase,
    /// Bytes of layers that have arrived, or were here.
    pub done: u64,
    /// Bytes of all layers, as they are in the registry; 0 until they are known.
    pub total: u64,
    layers: Vec<Layer>,
}

/// What is done to the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PullPhase"))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The registry is asked for it.
    #[default]
    Resolving,
    /// Its layers come.
    Pulling,
    /// All layers are here, and become one filesystem.
    Merging,
    /// It can be used.
    Done,
}

/// How far a layer is.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PullLayer"))]
struct Layer {
    /// Of the blob, as the manifest has it.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    digest: Digest,
    phase: LayerPhase,
    /// Bytes of the blob that have arrived. Fewer than before if it starts over.
    done: u64,
    /// Bytes of the blob.
    total: u64,
    /// Why it is fetched again.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PullLayerPhase"))]
#[serde(rename_all = "snake_case")]
enum LayerPhase {
    Waiting,
    Pulling,
    Retrying,
    Present,
    Done,
}

/// Tells a program how far pulls are: at each step of the image, and ten times a second while bytes arrive.
pub struct Reports<F> {
    tell: F,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pulling: Pulling,
    /// Places in the list of layers by diff ID.
    places: HashMap<Digest, usize>,
    told: Option<Instant>,
}

impl<F: Fn(Report<'_>) + Send + Sync> Reports<F> {
    /// Nothing is pulled yet. `tell` is called by one thread at a time, in order.
    pub fn new(tell: F) -> Self {
        Self {
            tell,
            state: Mutex::default(),
        }
    }
}

impl<F: Fn(Report<'_>) + Send + Sync> Progress for Reports<F> {
    fn event(&self, event: Event<'_>) {
        let mut state = lock(&self.state);
        let is_step = match event {
            Event::Notice(message) => return (self.tell)(Report::Notice { message }),
            Event::Phase(phase) => {
                state.pulling.phase = phase.into();
                true
            }
            Event::Layers(layers) => {
                layers.iter().for_each(|layer| state.add(layer));
                true
            }
            Event::Layer {
                diff_id,
                state: now,
            } => state.change(diff_id, &now),
            _ => return,
        };
        let is_due = state.told.is_none_or(|told| told.elapsed() >= INTERVAL);
        if is_step || is_due {
            state.told = Some(Instant::now());
            (self.tell)(Report::Progress(&state.pulling));
        }
    }
}

impl State {
    fn add(&mut self, layer: &progress::Layer) {
        let place = self.pulling.layers.len();
        // Another image may have it too.
        if *self.places.entry(layer.diff_id).or_insert(place) < place {
            return;
        }
        self.pulling.total = self.pulling.total.saturating_add(layer.blob.size);
        self.pulling.layers.push(Layer {
            digest: layer.blob.digest,
            phase: LayerPhase::Waiting,
            done: 0,
            total: layer.blob.size,
            reason: None,
        });
    }

    /// Takes a layer's new state. Returns whether it is told at once.
    fn change(&mut self, diff_id: &Digest, state: &LayerState<'_>) -> bool {
        let place = self.places.get(diff_id);
        let Some(layer) = place.and_then(|place| self.pulling.layers.get_mut(*place)) else {
            return false;
        };
        let before = layer.done;
        layer.reason = None;
        match state {
            LayerState::Received { bytes } => {
                layer.phase = LayerPhase::Pulling;
                layer.done = (*bytes).min(layer.total);
            }
            LayerState::Retrying { reason, .. } => {
                layer.phase = LayerPhase::Retrying;
                layer.reason = Some(cut((*reason).to_owned()));
            }
            LayerState::Present => {
                layer.phase = LayerPhase::Present;
                layer.done = layer.total;
            }
            LayerState::Done => {
                layer.phase = LayerPhase::Done;
                layer.done = layer.total;
            }
            // Of images that leave.
            _ => return false,
        }
        let others = self.pulling.done.saturating_sub(before);
        self.pulling.done = others.saturating_add(layer.done);
        layer.phase == LayerPhase::Retrying
    }
}

impl From<progress::Phase> for Phase {
    fn from(phase: progress::Phase) -> Self {
        match phase {
            progress::Phase::Resolving => Self::Resolving,
            progress::Phase::Layers => Self::Pulling,
            progress::Phase::Publishing => Self::Merging,
            progress::Phase::Done => Self::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use micabox_image::Descriptor;
    use serde_json::{Value, json};

    use super::*;

    fn layer(byte: u8, size: u64) -> progress::Layer {
        progress::Layer {
            diff_id: Digest::of(&[byte]),
            blob: Descriptor {
                media_type: String::new(),
                digest: Digest::of(&[byte, byte]),
                size,
            },
        }
    }

    #[test]
    fn a_report_has_all_of_a_pull_and_comes_at_a_bounded_rate() {
        let told = Mutex::new(Vec::new());
        let reports = Reports::new(|report: Report<'_>| {
            told.lock()
                .unwrap()
                .push(serde_json::to_value(report).unwrap());
        });
        let layers = [layer(1, 1_000_000), layer(2, 50)];
        let say = |place: usize, state: LayerState<'_>| {
            let diff_id = &layers[place].diff_id;
            reports.event(Event::Layer { diff_id, state });
        };
        let received = |place, bytes| say(place, LayerState::Received { bytes });
        reports.event(Event::Phase(progress::Phase::Resolving));
        reports.event(Event::Phase(progress::Phase::Layers));
        reports.event(Event::Layers(&layers));
        let begun = Instant::now();
        for bytes in 0..1_000 {
            received(0, bytes);
        }
        let most = 3 + 1 + begun.elapsed().as_millis() / INTERVAL.as_millis();
        assert!((3..=most as usize).contains(&told.lock().unwrap().len()));
        say(1, LayerState::Present);
        // What is told at once has what was not told before.
        let pause = Duration::from_secs(1);
        say(
            0,
            LayerState::Retrying {
                reason: "lost",
                pause,
            },
        );
        let digest = |place: usize| layers[place].blob.digest;
        let last = |told: &Mutex<Vec<Value>>| told.lock().unwrap().last().unwrap().clone();
        let present = json!({"digest": digest(1), "phase": "present", "done": 50, "total": 50});
        assert_eq!(
            last(&told),
            json!({"type": "progress", "phase": "pulling", "done": 1049, "total": 1_000_050, "layers": [
                {"digest": digest(0), "phase": "retrying", "done": 999, "total": 1_000_000, "reason": "lost"},
                present,
            ]})
        );
        // It starts over; more arrives than was said; a layer comes twice.
        received(0, 10);
        received(0, u64::MAX);
        reports.event(Event::Layers(&layers[1..]));
        say(0, LayerState::Done);
        reports.event(Event::Phase(progress::Phase::Done));
        assert_eq!(
            last(&told),
            json!({"type": "progress", "phase": "done", "done": 1_000_050, "total": 1_000_050, "layers": [
                {"digest": digest(0), "phase": "done", "done": 1_000_000, "total": 1_000_000},
                present,
            ]})
        );
        reports.event(Event::Notice("a word"));
        assert_eq!(last(&told), json!({"type": "notice", "message": "a word"}));
    }
}
