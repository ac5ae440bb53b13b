//! The order in which a start reads chunks, so that a later one fetches them before they are asked for.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

use micabox_ground::lock;
use serde::{Deserialize, Serialize};

/// Chunks that are noted, and that an order may have: those of some 4 GB. Programs read less before they wait.
const MOST: usize = 1 << 14;

/// Chunks of an image's layers, or of a snapshot's memory, in the order in which they were read first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Number of a layer, from 0 at the bottom, a memory's is 0; of its first chunk; and how many there are, which follow
    /// it.
    runs: Vec<(u32, u32, u32)>,
}

impl Order {
    /// Returns runs of chunks with the number of their layer, as many as an order may have. There may be no such layers
    /// and chunks: a registry's order is not checked.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut left = MOST;
        self.runs.iter().map_while(move |&(layer, first, count)| {
            let count = (count as usize).min(left);
            left -= count;
            let first = first as usize;
            (count > 0).then(|| (layer as usize, first..first.saturating_add(count)))
        })
    }

    /// Returns whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Notes which chunks of an image's layers are read, in their order.
#[derive(Default)]
pub struct Recorder {
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    seen: HashSet<(u32, u32)>,
    order: Order,
    /// What was given to be kept last.
    given: Option<Order>,
}

impl Recorder {
    /// Notes that a chunk is read, if that is its first time.
    pub fn note(&self, layer: usize, chunk: usize) {
        let (Ok(layer), Ok(chunk)) = (u32::try_from(layer), u32::try_from(chunk)) else {
            return;
        };
        let mut noted = lock(&self.noted);
        if noted.seen.len() >= MOST || !noted.seen.insert((layer, chunk)) {
            return;
        }
        match noted.order.runs.last_mut() {
            Some((last, first, count)) if *last == layer && *first + *count == chunk => *count += 1,
            _ => noted.order.runs.push((layer, chunk, 1)),
        }
    }

    /// Returns what was read so far.
    pub fn order(&self) -> Order {
        let noted = lock(&self.noted);
        noted.order.clone()
    }

    /// Returns what was read so far if it is to be kept: something was read since it was returned last, and what is `kept`
    /// is none of another start.
    pub fn order_to_keep(&self, kept: Option<&Order>) -> Option<Order> {
        let mut noted = lock(&self.noted);
        let is_ours = kept.is_none() || kept == noted.given.as_ref();
        if !is_ours || noted.order.is_empty() || kept == Some(&noted.order) {
            return None;
        }
        noted.given = Some(noted.order.clone());
        noted.given.clone()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_noted_once_and_those_that_follow_each_other_are_one_run() {
        let recorder = Recorder::default();
        for (layer, chunk) in [(0, 4), (0, 5), (1, 6), (0, 4), (0, 6), (1, 7)] {
            recorder.note(layer, chunk);
        }
        let order = recorder.order();
        let runs: Vec<_> = order.runs().collect();
        assert_eq!(runs, [(0, 4..6), (1, 6..7), (0, 6..7), (1, 7..8)]);
    }

    #[test]
    fn what_is_read_later_is_kept_too_unless_another_start_has_left_an_order() {
        let recorder = Recorder::default();
        assert_eq!(recorder.order_to_keep(None), None);
        recorder.note(0, 4);
        let first = recorder.order_to_keep(None).unwrap();
        assert_eq!(recorder.order_to_keep(Some(&first)), None);
        recorder.note(0, 9);
        let second = recorder.order_to_keep(Some(&first)).unwrap();
        let runs: Vec<_> = second.runs().collect();
        assert_eq!(runs, [(0, 4..5), (0, 9..10)]);
        // It could not be kept.
        assert_eq!(recorder.order_to_keep(None), Some(second));
        recorder.note(0, 20);
        assert_eq!(recorder.order_to_keep(Some(&first)), None);
    }

    #[test]
    fn an_order_that_lies_has_no_more_chunks_than_one_may_have() {
        let runs = vec![(0, u32::MAX, u32::MAX); 3];
        let all: usize = Order { runs }.runs().map(|(_, run)| run.len()).sum();
        assert_eq!(all, MOST);
    }
}
