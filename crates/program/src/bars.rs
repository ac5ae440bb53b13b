//! Shows the progress of images that are imported, saved or pushed on the user's terminal.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use micabox_ground::lock;
use micabox_image::Digest;
use micabox_image::progress::{Event, LayerState, Phase, Progress};

use crate::output::{stderr_is_terminal, write_stderr};
use crate::visible;

/// How many digits of a digest a line shows.
const SHORT_DIGEST: usize = 12;

/// Interval at which animated parts are redrawn.
const TICK: Duration = Duration::from_millis(100);

const TRANSFER: &str = "{prefix} {msg:11} [{bar:30}] {decimal_bytes:>9}/{decimal_total_bytes:<9} {decimal_bytes_per_sec:>11}";
const SETTLED: &str = "{prefix} {msg}";
const PHASE: &str = "{spinner} {msg}";

/// Returns the progress of an image that is imported: bars on a terminal, otherwise only notices.
pub fn watch(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &INCOMING)
}

/// Returns the progress of an image that is saved.
pub fn watch_saving(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &SAVING)
}

/// Returns the progress of an image that is converted.
pub fn watch_converting(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &CONVERTING)
}

/// Returns the progress of layers that are packed.
pub fn watch_packing(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &PACKING)
}

/// Returns the progress of an image that is unpacked.
pub fn watch_unpacking(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &UNPACKING)
}

/// Returns the progress of an image that is pushed.
pub fn watch_pushing(what: &str) -> Arc<dyn Progress> {
    watch_with(what, &PUSHING)
}

fn watch_with(what: &str, words: &'static Words) -> Arc<dyn Progress> {
    if stderr_is_terminal() {
        Arc::new(Bars::new(what, words))
    } else {
        Arc::new(Notices)
    }
}

/// The words for the same events of different operations.
struct Words {
    layers: &'static str,
    publishing: &'static str,
    present: &'static str,
    done: &'static str,
}

const INCOMING: Words = Words {
    layers: "importing",
    publishing: "merging the layers of",
    present: "already here",
    done: "imported",
};

const SAVING: Words = Words {
    layers: "saving",
    publishing: "finishing",
    present: "saved",
    done: "saved",
};

const CONVERTING: Words = Words {
    layers: "converting",
    publishing: "finishing",
    present: "converted",
    done: "converted",
};

const PACKING: Words = Words {
    layers: "packing",
    publishing: "waiting for other users of",
    present: "stays whole: it can't be compressed",
    done: "packed",
};

const UNPACKING: Words = Words {
    layers: "unpacking",
    publishing: "finishing",
    present: "already unpacked",
    done: "unpacked",
};

const PUSHING: Words = Words {
    layers: "pushing",
    publishing: "publishing",
    present: "already there",
    done: "pushed",
};

/// Shows notices only.
struct Notices;

impl Progress for Notices {
    fn event(&self, event: Event<'_>) {
        if let Event::Notice(text) = event {
            write_stderr(&format!("mica: {text}\n"));
        }
    }
}

/// Returns the user's terminal; a hidden target if it can't move its cursor.
fn target() -> ProgressDrawTarget {
    const RATE: u8 = 20;
    let terminal = Term::buffered_stderr();
    if terminal.features().is_attended() {
        ProgressDrawTarget::term_like_with_hz(Box::new(Filtered(terminal)), RATE)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A terminal that gets control sequences from indicatif and none from the text: the last place
/// that progress passes through, see `clippy.toml`.
#[derive(Debug)]
struct Filtered(Term);

impl TermLike for Filtered {
    fn width(&self) -> u16 {
        TermLike::width(&self.0)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(&visible::line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        // indicatif returns to the beginning of a line with this.
        if text == "\r" {
            return self.0.write_str(text);
        }
        self.0.write_str(&visible::line(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// One bar for each layer, below a line with the current phase.
struct Bars {
    what: String,
    words: &'static Words,
    all: MultiProgress,
    phase: ProgressBar,
    layers: Mutex<HashMap<Digest, ProgressBar>>,
    files: Mutex<HashMap<String, ProgressBar>>,
}

impl Bars {
    fn new(what: &str, words: &'static Words) -> Self {
        let all = MultiProgress::with_draw_target(target());
        let phase = all.add(ProgressBar::new_spinner().with_style(style(PHASE)));
        phase.enable_steady_tick(TICK);
        Self {
            what: visible::line(what).into_owned(),
            words,
            all,
            phase,
            layers: Mutex::new(HashMap::new()),
            files: Mutex::new(HashMap::new()),
        }
    }

    fn enter(&self, phase: Phase) {
        let doing = match phase {
            Phase::Resolving => "looking for",
            Phase::Layers => self.words.layers,
            Phase::Publishing => self.words.publishing,
            Phase::Done => return self.phase.finish_and_clear(),
        };
        self.phase.set_message(format!("{doing} {}", self.what));
    }

    fn layer(&self, diff_id: &Digest, state: &LayerState<'_>) {
        let layers = lock(&self.layers);
        let Some(bar) = layers.get(diff_id) else {
            return;
        };
        match state {
            LayerState::Present => settle(bar, self.words.present),
            LayerState::Received { bytes } => {
                bar.set_message("importing");
                bar.set_position(*bytes);
            }
            LayerState::Packed { bytes } => {
                bar.set_message("packing");
                bar.set_position(*bytes);
            }
            LayerState::Unpacked { bytes } => {
                bar.set_message("unpacking");
                bar.set_position(*bytes);
            }
            LayerState::Sent { bytes, of } => {
                bar.set_message("sending");
                bar.set_length(*of);
                bar.set_position(*bytes);
            }
            LayerState::Retrying { reason, pause } => {
                bar.set_message("waiting");
                let short = bar.prefix();
                let seconds = pause.as_secs_f64();
                let line = format!("{short} {reason}; trying again in {seconds:.1} s");
                let _ = self.all.println(visible::line(&line));
            }
            LayerState::Done => settle(bar, self.words.done),
            _ => {}
        }
    }
}

impl Bars {
    fn file(&self, name: &str, bytes: u64, of: u64) {
        let mut files = lock(&self.files);
        let bar = files.entry(name.to_owned()).or_insert_with(|| {
            let bar = ProgressBar::new(of).with_style(style(TRANSFER));
            let bar = self.all.add(bar);
            bar.set_prefix(visible::line(name).into_owned());
            bar.set_message(self.words.layers);
            bar
        });
        // A snapshot has two files, one after the other.
        bar.set_length(of);
        bar.set_position(bytes);
    }
}

impl Progress for Bars {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Phase(phase) => self.enter(phase),
            Event::Layers(sizes) => {
                let mut layers = lock(&self.layers);
                for layer in sizes {
                    let bar = ProgressBar::new(layer.blob.size).with_style(style(TRANSFER));
                    let bar = self.all.add(bar);
                    let hex = layer.blob.digest.hex();
                    bar.set_prefix(hex.get(..SHORT_DIGEST).unwrap_or(&hex).to_owned());
                    bar.set_message("waiting");
                    layers.insert(layer.diff_id, bar);
                }
            }
            Event::Layer { diff_id, state } => self.layer(diff_id, &state),
            Event::File { name, bytes, of } => self.file(name, bytes, of),
            Event::Notice(text) => {
                let _ = self.all.println(visible::line(&format!("mica: {text}")));
            }
            _ => {}
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        // Leaves the terminal clean after an error, too.
        self.phase.finish_and_clear();
        let (layers, files) = (lock(&self.layers), lock(&self.files));
        let all = layers.values().chain(files.values());
        for bar in all.filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

fn settle(bar: &ProgressBar, what: &'static str) {
    bar.set_style(style(SETTLED));
    bar.finish_with_message(what);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_progress_bars_are_well_formed() {
        for template in [TRANSFER, SETTLED, PHASE] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
