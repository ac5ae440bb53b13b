//! Compares the check with `e2fsck -fn` on filesystems in which one field of one structure was
//! changed and all checksums were corrected: the check must report what e2fsck reports, and further
//! findings must be among those that the check lists as beyond e2fsck.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;

use micabox_ext4::check::{BEYOND_E2FSCK, Finding, check};
use micabox_ext4::{Ext4, FileKind, Options, Owner, ROOT, SetXattr};

use crate::support::places::{Place, Places, What};
use micabox_testing::{e2fsprogs, run};

/// Options of mke2fs. Small, so that thousands can be checked in a minute.
const SHAPES: [&str; 8] = [
    "-t ext4 -b 1024 -N 128 -g 1024",
    "-t ext4 -b 1024 -N 128 -O ^has_journal,inline_data,ea_inode",
    "-t ext4 -b 1024 -N 128 -O ^metadata_csum,uninit_bg,^has_journal -g 1024",
    "-t ext3 -b 1024 -N 128",
    "-t ext4 -b 1024 -N 128 -O orphan_file,metadata_csum_seed",
    "-t ext4 -b 1024 -N 128 -O ^has_journal,quota,project",
    "-t ext4 -b 1024 -N 128 -O ^has_journal,bigalloc -C 4096",
    "-t ext4 -b 4096 -N 128 -I 128 -O ^has_journal,^flex_bg,^64bit,sparse_super2,^resize_inode",
];
const SIZE: u64 = 4 << 20;
/// Number of bytes compared and written together.
const PIECE: usize = 4096;
/// Number of threads that make mutations, each with its own images: each waits for e2fsck.
const WORKERS: u64 = 2;

/// A small generator of numbers; deterministic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn populate(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir(root.join("some")).unwrap();
    for number in 0..20 {
        let name = format!("some/a_name_that_is_long_enough_{number}");
        fs::write(root.join(name), number.to_string().repeat(20)).unwrap();
    }
    fs::write(root.join("a/large"), vec![7; 300_000]).unwrap();
    let sparse = File::create(root.join("a/sparse")).unwrap();
    for index in 0..12 {
        sparse.write_all_at(b"island", index * 9000).unwrap();
    }
    symlink("short", root.join("fast")).unwrap();
    symlink("long/".repeat(30), root.join("slow")).unwrap();
    fs::hard_link(root.join("a/large"), root.join("a/b/linked")).unwrap();
}

/// Adds structures that mke2fs does not make: an index, attributes, devices.
fn refine(path: &Path) {
    let device = OpenOptions::new().read(true).write(true).open(path);
    // Some shapes can't be written.
    let Ok(mut filesystem) = Ext4::open(device.unwrap(), Options::default()) else {
        return;
    };
    let owner = Owner::root(0o755);
    let many = filesystem.mkdir(ROOT, b"many", owner).unwrap();
    for number in 0..60 {
        let name = format!("a_name_in_an_indexed_directory_{number}_{}", "x".repeat(30));
        let kind = [FileKind::Fifo, FileKind::CharDevice, FileKind::Socket][number % 3];
        let made = filesystem.mknod(many, name.as_bytes(), kind, (5, 1), owner);
        // No inodes are left.
        if made.is_err() {
            break;
        }
    }
    for (path, lengths) in [("/a/large", [20, 600]), ("/a/sparse", [15, 10])] {
        let file = filesystem.resolve(path.as_bytes()).unwrap();
        for (name, length) in [&b"user.one"[..], b"user.other"].into_iter().zip(lengths) {
            let value = vec![b'v'; length];
            filesystem
                .set_xattr(file, name, &value, SetXattr::Any)
                .unwrap();
        }
    }
    drop(filesystem.close().unwrap());
}

/// An image, and the places in it that may be changed.
struct Subject {
    file: tempfile::NamedTempFile,
    sound: Arc<Vec<u8>>,
    places: Arc<Places>,
    by_kind: Arc<Vec<Vec<Place>>>,
}

impl Subject {
    fn new(shape: &str) -> Self {
        let tree = tempfile::tempdir().unwrap();
        populate(tree.path());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        let mut command = e2fsprogs::tool("mke2fs");
        command.args(["-q", "-F"]).args(shape.split(' ')).arg("-d");
        run(command.arg(tree.path()).arg(file.path()));
        refine(file.path());
        if shape.contains("quota") {
            // mke2fs omits the quotas of the files that it copies.
            let mut command = e2fsprogs::tool("e2fsck");
            let _ = command.arg("-fy").arg(file.path()).output().unwrap();
        }
        let sound = fs::read(file.path()).unwrap();
        assert_eq!(check(file.as_file()), [], "{shape}");
        assert!(e2fsprogs::e2fsck(file.path()).unwrap().clean, "{shape}");
        let places = Places::of(&sound);
        let mut by_kind: BTreeMap<What, Vec<Place>> = BTreeMap::new();
        for place in &places.all {
            by_kind.entry(place.what).or_default().push(*place);
        }
        Self {
            file,
            sound: sound.into(),
            places: places.into(),
            by_kind: Arc::new(by_kind.into_values().collect()),
        }
    }

    /// Copies the subject to another file.
    fn copy(&self) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&self.sound, 0).unwrap();
        Self {
            file,
            sound: self.sound.clone(),
            places: self.places.clone(),
            by_kind: self.by_kind.clone(),
        }
    }

    /// Returns both verdicts on the image after a change, which is undone afterwards.
    fn judge(
        &self,
        place: &Place,
        offset: usize,
        value: &[u8],
    ) -> Option<(e2fsprogs::Verdict, Vec<Finding>)> {
        let mut image = self.sound.to_vec();
        let at = place.at + offset;
        image[at..at + value.len()].copy_from_slice(value);
        self.places.seal(&mut image, place);
        let changed: Vec<usize> = (0..image.len())
            .step_by(PIECE)
            .filter(|&at| image[at..at + PIECE] != self.sound[at..at + PIECE])
            .collect();
        let put = |from: &[u8]| {
            for &at in &changed {
                let bytes = &from[at..at + PIECE];
                self.file.as_file().write_all_at(bytes, at as u64).unwrap();
            }
        };
        put(&image);
        let verdict = e2fsprogs::e2fsck(self.file.path());
        let findings = check(self.file.as_file());
        put(&self.sound);
        verdict.map(|verdict| (verdict, findings))
    }
}

/// Returns a field's new value: extreme, near the old one, or arbitrary.
fn value(random: &mut Random, old: &[u8]) -> Vec<u8> {
    let mut number = [0; 8];
    number[..old.len()].copy_from_slice(old);
    let old_number = u64::from_le_bytes(number);
    let new = match random.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => old_number.wrapping_add(1),
        4 => old_number.wrapping_sub(1),
        5 | 6 => old_number ^ 1 << random.below(old.len() * 8),
        7 => random.below(200) as u64,
        8 => 1 << random.below(old.len() * 8),
        _ => random.next(),
    };
    new.to_le_bytes()[..old.len()].to_vec()
}

#[derive(Debug, Default)]
struct Row {
    both_fault: u32,
    both_pass: u32,
    missed: u32,
    /// Findings beyond e2fsck that the check lists, and those that it does not.
    beyond: u32,
    unexplained: u32,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.both_fault += other.both_fault;
        self.both_pass += other.both_pass;
        self.missed += other.missed;
        self.beyond += other.beyond;
        self.unexplained += other.unexplained;
    }
}

fn listed(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|finding| format!("\n    {finding}"))
        .collect()
}

/// The disagreements between the check and e2fsck.
#[derive(Debug, Default)]
struct Outcome {
    table: BTreeMap<What, Row>,
    /// How often the check reports more, by the reason that it lists.
    reasons: BTreeMap<&'static str, u32>,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        for (what, row) in other.table {
            self.table.entry(what).or_default().add(&row);
        }
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    fn total(&self) -> Row {
        let mut total = Row::default();
        self.table.values().for_each(|row| total.add(row));
        total
    }

    fn note(
        &mut self,
        what: What,
        where_: &str,
        verdict: &e2fsprogs::Verdict,
        findings: &[Finding],
    ) {
        let row = self.table.entry(what).or_default();
        // A remark that e2fsck does not count as an error may be a finding.
        let told_too = verdict.passed && !verdict.clean && !findings.is_empty();
        match (verdict.passed && !told_too, findings.is_empty()) {
            (true, true) => row.both_pass += 1,
            (false, false) => row.both_fault += 1,
            (false, true) => {
                row.missed += 1;
                println!("MISSED {where_}\n{}", verdict.text);
            }
            (true, false) => {
                let mut unexplained = findings.to_vec();
                unexplained.retain(|finding| {
                    let reason = BEYOND_E2FSCK
                        .iter()
                        .find(|(text, _)| finding.problem.contains(text));
                    if let Some((text, _)) = reason {
                        *self.reasons.entry(text).or_default() += 1;
                    }
                    reason.is_none()
                });
                if unexplained.is_empty() {
                    row.beyond += 1;
                } else {
                    row.unexplained += 1;
                    println!("BEYOND {where_}{}\n{}", listed(&unexplained), verdict.text);
                }
            }
        }
    }
}

/// Makes `count` mutations and returns the disagreements.
fn work(subjects: &[Subject], count: usize, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let mut outcome = Outcome::default();
    let mut done = 0;
    while done < count {
        let number = random.below(subjects.len());
        let subject = &subjects[number];
        let kind = &subject.by_kind[random.below(subject.by_kind.len())];
        let place = &kind[random.below(kind.len())];
        let width = [1, 2, 4, 4][random.below(4)];
        let offset = random.below(place.length / width) * width;
        let old = &subject.sound[place.at + offset..][..width];
        let new = value(&mut random, old);
        if new == old {
            continue;
        }
        // Images on which e2fsck loops have no verdict.
        let Some((verdict, findings)) = subject.judge(place, offset, &new) else {
            continue;
        };
        done += 1;
        let where_ = format!(
            "{:?} at {offset:#x}: {old:02x?} became {new:02x?} ({} bytes in) of `{}`",
            place.what, place.at, SHAPES[number]
        );
        outcome.note(place.what, &where_, &verdict, &findings);
    }
    outcome
}

/// Makes `count` mutations; prints the disagreements in total.
fn mutate(count: usize, seed: u64) {
    let subjects: Vec<Subject> = SHAPES.iter().map(|shape| Subject::new(shape)).collect();
    let share = count / WORKERS as usize;
    let mut outcome = Outcome::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let own: Vec<Subject> = subjects.iter().map(Subject::copy).collect();
                scope.spawn(move || work(&own, share, seed ^ worker << 32))
            })
            .collect();
        for worker in workers {
            outcome.add(worker.join().unwrap());
        }
    });
    println!(
        "{:14} {:>11} {:>10} {:>7} {:>7} {:>12}",
        "", "both fault", "both pass", "missed", "beyond", "unexplained"
    );
    for (what, row) in &outcome.table {
        println!(
            "{:14} {:>11} {:>10} {:>7} {:>7} {:>12}",
            format!("{what:?}"),
            row.both_fault,
            row.both_pass,
            row.missed,
            row.beyond,
            row.unexplained
        );
    }
    let all = outcome.total();
    println!("{count} in all: {all:?}\n{:#?}", outcome.reasons);
    assert_eq!((all.missed, all.unexplained), (0, 0));
    assert!(all.both_fault as usize > count / 4 && all.both_pass as usize > count / 10);
}

#[test]
fn mutations_that_e2fsck_reports_are_reported() {
    mutate(400, 1);
}

#[test]
#[ignore = "takes minutes"]
fn mutations_that_e2fsck_reports_are_reported_of_2000() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let count = number("MICABOX_MUTATIONS").unwrap_or(2000);
    mutate(count as usize, number("MICABOX_SEED").unwrap_or(2));
}
