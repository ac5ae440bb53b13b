//! Cuts histories off at every write; unflushed writes are reordered, lost or torn.

use std::collections::BTreeSet;

use micabox_ext4::check::check;
use micabox_ext4::device::Memory;
use micabox_ext4::{BlockDevice, DeviceError, Errno, Ext4, Options};

use crate::support::engine::{self, Image};
use crate::support::model::{self, Model, Op, Random};

const SECTOR: usize = 512;
const BLOCK: usize = 4096;
const SUPERBLOCK: usize = 1024;

/// A request to a device.
#[derive(Debug)]
enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

/// A device that records all requests.
#[derive(Debug)]
struct Recorder {
    now: Memory,
    events: Vec<Event>,
}

impl BlockDevice for Recorder {
    fn size(&self) -> Result<u64, DeviceError> {
        self.now.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.now.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.events.push(Event::Write(offset, buf.to_vec()));
        self.now.write_at(offset, buf)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.events.push(Event::Flush);
        Ok(())
    }
}

/// The state after an operation.
struct Moment {
    /// Number of events by then.
    events: usize,
    /// The names and types at that time.
    shape: String,
}

/// The state that a sync made durable.
struct Promise {
    /// Number of events when the sync returned.
    events: usize,
    /// Number of operations completed by then.
    done: usize,
}

struct History {
    start: Vec<u8>,
    events: Vec<Event>,
    moments: Vec<Moment>,
    promises: Vec<Promise>,
    models: Vec<Model>,
}

impl History {
    fn new(image: &Image, seed: u64, steps: usize) -> Self {
        let start = std::fs::read(image.path()).unwrap();
        let device = Recorder {
            now: start.clone().into(),
            events: Vec::new(),
        };
        let options = Options {
            page_cache: 1 << 20,
            block_cache: 256 << 10,
            ..Options::default()
        };
        let mut filesystem = Ext4::open(device, options).unwrap();
        let mut random = Random(seed);
        let mut model = Model::new();
        let mut history = Self {
            start,
            events: Vec::new(),
            moments: vec![Moment {
                events: 0,
                shape: model.shape(),
            }],
            promises: vec![Promise { events: 0, done: 0 }],
            models: vec![model.clone()],
        };
        for _ in 0..steps {
            let op = if random.below(12) == 0 {
                Op::Sync
            } else {
                Op::random(&mut random)
            };
            let before = model.clone();
            let expected = model.apply(&op);
            let found = model::apply(&mut filesystem, &op);
            if found == Err(Errno::NoSpace) && expected != found {
                model = before;
                model.done += 1;
            } else {
                assert_eq!(found, expected, "{op:?}");
            }
            let events = filesystem.device().events.len();
            history.moments.push(Moment {
                events,
                shape: model.shape(),
            });
            if matches!(op, Op::Sync) {
                history.promises.push(Promise {
                    events,
                    done: model.done,
                });
            }
            history.models.push(model.clone());
        }
        history.events = filesystem.abandon().events;
        history
    }

    /// Returns the device after a crash just before event `cut`.
    fn crash(&self, cut: usize, random: &mut Random, reorder: bool) -> Vec<u8> {
        let mut bytes = self.start.clone();
        let before = self.events.get(..cut).unwrap();
        let last_flush = before
            .iter()
            .rposition(|event| matches!(event, Event::Flush))
            .unwrap_or(0);
        for (number, event) in before.iter().enumerate() {
            let Event::Write(offset, data) = event else {
                continue;
            };
            let at = *offset as usize;
            if number < last_flush || !reorder {
                bytes[at..at + data.len()].copy_from_slice(data);
                continue;
            }
            // Any sectors of unflushed writes are lost, or all, or none.
            let fate = random.below(3);
            // The superblock is assumed to be written atomically, as Linux assumes.
            let sector = if at <= SUPERBLOCK { BLOCK } else { SECTOR };
            for (index, bytes_of) in data.chunks(sector).enumerate() {
                if fate == 0 || (fate == 1 && random.below(2) == 0) {
                    let at = at + index * sector;
                    let sector = bytes_of;
                    bytes[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        bytes
    }

    /// Checks the state after a crash before event `cut`: consistent, and with everything that a
    /// sync made durable.
    fn examine(&self, cut: usize, bytes: Vec<u8>, when: &str) -> Vec<u8> {
        // The journal alone must suffice: in memory as on disk.
        let mut reader = Ext4::open_read_only(Memory::from(bytes.clone()), Options::default())
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        let shape = model::shape(&mut reader);
        let mut filesystem = Ext4::open(Memory::from(bytes), Options::default())
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(
            model::shape(&mut filesystem),
            shape,
            "{when}: replayed on disk and in memory"
        );
        let promise = self
            .promises
            .iter()
            .rfind(|promise| promise.events <= cut)
            .unwrap();
        let known: BTreeSet<&str> = self
            .moments
            .iter()
            .enumerate()
            .filter(|(number, moment)| {
                *number >= promise.done
                    // The operation that was in progress may be present or absent.
                    && self.moments.get(number.saturating_sub(1)).is_none_or(|before| before.events <= cut)
                    || *number == promise.done
                    || moment.events == cut
            })
            .map(|(_, moment)| moment.shape.as_str())
            .collect();
        assert!(
            known.contains(shape.as_str()),
            "{when}: not a state that there was:\n{shape}"
        );
        // Anything untouched since the sync is unchanged.
        let under_way = self.moments.partition_point(|moment| moment.events <= cut);
        let since = self.models.get(promise.done..).unwrap_or_default();
        let mut places = since[0].places(usize::MAX);
        for model in since.iter().take(under_way + 1 - promise.done).skip(1) {
            let now = model.places(promise.done);
            places.retain(|path, node| now.get(path) == Some(node));
        }
        let mut expected = since[0].unchanged(usize::MAX);
        expected.retain(|path, _| places.contains_key(path));
        model::assert_includes(&model::describe(&mut filesystem), &expected, when);
        let device = filesystem.close().unwrap();
        let findings = check(&device);
        assert!(findings.is_empty(), "{when}: {findings:?}");
        device.into_bytes()
    }
}

fn crash_everywhere(image: &Image, seed: u64, steps: usize, step: usize) {
    let history = History::new(image, seed, steps);
    let mut random = Random(seed);
    let mut sampled = 0;
    let cuts = (0..=history.events.len()).step_by(step);
    for (number, cut) in cuts.enumerate() {
        for reorder in [false, true] {
            let when = format!(
                "seed {seed}, cut at {cut} of {}, {reorder}",
                history.events.len()
            );
            let bytes = history.crash(cut, &mut random, reorder);
            let after = history.examine(cut, bytes, &when);
            if number % 40 == 7 {
                sampled += 1;
                let path = image.path().with_extension("crashed");
                std::fs::write(&path, after).unwrap();
                engine::check(&path);
            }
        }
    }
    println!(
        "seed {seed}: {} events, {sampled} before e2fsck",
        history.events.len()
    );
}

#[test]
fn synced_changes_survive_a_crash() {
    for seed in 0..3 {
        crash_everywhere(&Image::new(16 << 20), seed, 300, 1);
    }
}

#[test]
fn synced_changes_survive_a_crash_when_the_log_wraps_around() {
    // Long enough to go through the log several times.
    for seed in 10..12 {
        crash_everywhere(&Image::new(16 << 20), seed, 3000, 61);
    }
}

#[test]
fn synced_changes_survive_a_crash_with_other_feature_sets() {
    for (seed, shape) in [
        ["-t", "ext4", "-b", "1024"].as_slice(),
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
        &["-t", "ext4", "-O", "inline_data"],
    ]
    .iter()
    .enumerate()
    {
        crash_everywhere(&Image::mke2fs(24 << 20, shape), 20 + seed as u64, 400, 9);
    }
}
