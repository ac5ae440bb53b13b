//! Files of sandboxes that are packed beside layers: the same bytes and holes afterwards, shared chunks, removal, damage.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_image::Store;
use micabox_image::progress::Silent;
use micabox_image::store::{
    Error, FilePacked, PackChoice, Packing, Patience, PruneOptions, Repair, is_packed_file,
    list_of, packed_size,
};

use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::{TestStore, store};

const BLOCK: usize = 4096;

/// Bytes that don't repeat and that zstd can halve.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + (state % 16) as u8
    };
    std::iter::repeat_with(step).take(length).collect()
}

/// Makes a volume's disk of 64 MiB with these bytes at these blocks.
pub fn disk(store: &Store, name: &str, parts: &[(u64, &[u8])]) -> PathBuf {
    let directory = store.root().join("volumes").join(name);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("disk.ext4");
    let file = File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    for (block, bytes) in parts {
        file.write_all_at(bytes, block * BLOCK as u64).unwrap();
    }
    path
}

pub fn packing(store: &Store) -> Packing<'_> {
    store.packing(Patience::Wait).unwrap().unwrap()
}

/// Packs a file. Returns the bytes on disk that it took, and that what is new takes.
pub fn pack(packing: &mut Packing<'_>, path: &Path) -> (u64, u64) {
    let file = File::open(path).unwrap();
    let FilePacked::Chunks(packed) = packing.write(&file, path, &mut |_, _| ()).unwrap() else {
        panic!("{} was not packed", path.display());
    };
    let sizes = (packed.before(), packed.added());
    packed.replace(path).unwrap();
    assert!(is_packed_file(path));
    sizes
}

fn unpack(store: &Store, path: &Path) {
    assert!(store.unpack_file(path, &mut |_, _| ()).unwrap());
    assert!(!list_of(path).exists());
}

fn assert_clean(store: &Store) {
    let report = store.fsck(false).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.strangers, [] as [&Path; 0]);
}

fn packs(store: &TestStore) -> u64 {
    store.usage().unwrap().packs_size
}

#[test]
fn a_packed_file_has_its_bytes_and_holes() {
    let store = store();
    let (text, more) = (noise(1, 3_000_000), noise(2, 10_000));
    let last = (64 << 20) / BLOCK as u64 - 3;
    let path = disk(&store, "data", &[(0, &text), (9000, &more), (last, &more)]);
    let (bytes, blocks) = (
        fs::read(&path).unwrap(),
        fs::metadata(&path).unwrap().blocks(),
    );
    let (before, added) = pack(&mut packing(&store), &path);
    assert_eq!(before, blocks * 512);
    assert!(added < before * 3 / 4, "{added} of {before}");
    let size = packed_size(&path).unwrap().unwrap();
    assert_eq!(size.length, 64 << 20);
    let usage = store.usage().unwrap();
    assert_eq!((usage.packed_files, usage.packed_layers), (1, 0));
    assert_eq!(usage.packed_files_size, size.packed);
    assert!(usage.saved_size > 1_000_000, "{usage:?}");
    assert_eq!(store.fsck(false).unwrap().files, 1);
    store.prune(&PruneOptions::default()).unwrap();

    assert!(store.open_file(&path).is_ok());
    assert!(fs::read(&path).unwrap() == bytes);
    let metadata = fs::metadata(&path).unwrap();
    assert!(metadata.blocks() <= blocks, "it has holes again");
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert!(!list_of(&path).exists());
    assert!(!store.unpack_file(&path, &mut |_, _| ()).unwrap());
    store.prune(&PruneOptions::default()).unwrap();
    assert_eq!(packs(&store), 0);
    assert_clean(&store);
}

#[test]
fn a_disk_with_a_layers_files_takes_their_chunks() {
    let store = store();
    let files: Vec<_> = (10..40)
        .map(|seed| noise(seed, 3000 * seed as usize))
        .collect();
    let mut archive = Archive::new();
    for (number, file) in files.iter().enumerate() {
        archive = archive.file(&format!("{number}"), file);
    }
    publish(&store, &[archive.finish()], "image");
    let all = PackChoice::UnusedFor(Duration::ZERO);
    store.pack(&all, Patience::Wait, &Silent).unwrap();
    // In another order, where other files are between them.
    let mut parts = Vec::new();
    let (between, mut block) = (noise(99, 100), 5);
    for file in files.iter().rev() {
        for part in [&between, file] {
            parts.push((block, &**part));
            block += part.len().div_ceil(BLOCK) as u64;
        }
    }
    let path = disk(&store, "data", &parts);
    let bytes = fs::read(&path).unwrap();
    let (before, added) = pack(&mut packing(&store), &path);
    assert!(before > 2_000_000 && added < 100_000, "{added} of {before}");
    // Its chunks stay when the image goes.
    store.remove("image").unwrap();
    store.prune(&PruneOptions::default()).unwrap();
    assert_clean(&store);
    unpack(&store, &path);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn copies_of_a_disk_share_what_did_not_change() {
    let store = store();
    let text = noise(1, 4_000_000);
    let paths = ["one", "two", "three"].map(|name| disk(&store, name, &[(100, &text)]));
    let change = noise(5, 5000);
    for (number, path) in paths.iter().enumerate() {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&change, 500_000 * (number as u64 + 1))
            .unwrap();
    }
    let bytes = paths.clone().map(|path| fs::read(path).unwrap());
    let mut session = packing(&store);
    let added = paths.clone().map(|path| pack(&mut session, &path).1);
    drop(session);
    assert!(
        added[1] * 4 < added[0] && added[2] * 4 < added[0],
        "{added:?}"
    );
    // The first one has most chunks, which stay for the others when it goes.
    fs::remove_dir_all(paths[0].parent().unwrap()).unwrap();
    store.prune(&PruneOptions::default()).unwrap();
    assert_clean(&store);
    unpack(&store, &paths[1]);
    assert!(fs::read(&paths[1]).unwrap() == bytes[1]);
    store.prune(&PruneOptions::default()).unwrap();
    unpack(&store, &paths[2]);
    assert!(fs::read(&paths[2]).unwrap() == bytes[2]);
    assert_clean(&store);
}

#[test]
fn a_pack_that_is_mostly_dead_is_written_anew_for_files_too() {
    let store = store();
    let (shared, own) = (noise(1, 1_000_000), noise(2, 6_000_000));
    let large = disk(&store, "large", &[(0, &shared), (1000, &own)]);
    let small = disk(&store, "small", &[(0, &shared)]);
    let bytes = fs::read(&small).unwrap();
    let mut session = packing(&store);
    pack(&mut session, &large);
    pack(&mut session, &small);
    drop(session);
    let before = packs(&store);
    fs::remove_dir_all(large.parent().unwrap()).unwrap();
    let planned = store.usage().unwrap().reclaimable_size;
    assert_eq!(store.prune(&PruneOptions::default()).unwrap().size, planned);
    let after = packs(&store);
    assert!(after * 3 < before, "{after} of {before}");
    assert_clean(&store);
    unpack(&store, &small);
    assert!(fs::read(&small).unwrap() == bytes);
}

#[test]
fn a_file_that_is_there_is_what_counts_whatever_its_list_says() {
    let store = store();
    let path = disk(&store, "data", &[(0, &noise(1, 3_000_000))]);
    let bytes = fs::read(&path).unwrap();
    pack(&mut packing(&store), &path);
    // As after a kill between the two steps of packing, and a change.
    let later = noise(2, 64 << 20);
    fs::write(&path, &later).unwrap();
    assert_eq!(packed_size(&path).unwrap(), None);
    assert_eq!(store.usage().unwrap().packed_files, 0);
    assert!(!store.unpack_file(&path, &mut |_, _| ()).unwrap());
    assert!(fs::read(&path).unwrap() == later);
    assert!(!list_of(&path).exists());

    fs::write(&path, &bytes).unwrap();
    pack(&mut packing(&store), &path);
    fs::write(&path, &later).unwrap();
    let pruned = store.prune(&PruneOptions::default()).unwrap();
    assert!(pruned.size > 1_000_000, "{pruned:?}");
    assert!(!list_of(&path).exists());
    assert_eq!(packs(&store), 0);
    // Packed anew, it has the later bytes.
    pack(&mut packing(&store), &path);
    unpack(&store, &path);
    assert!(fs::read(&path).unwrap() == later);
}

#[test]
fn of_a_file_with_a_damaged_chunk_nothing_is_made_and_nothing_removed() {
    let store = store();
    let path = disk(&store, "data", &[(0, &noise(1, 3_000_000))]);
    let bytes = fs::read(&path).unwrap();
    pack(&mut packing(&store), &path);
    let pack_file = fs::read_dir(store.root().join("packs/sha256")).unwrap();
    let shard = pack_file.into_iter().next().unwrap().unwrap().path();
    let pack_file = fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    let sound = fs::read(&pack_file).unwrap();
    for at in [8, sound.len() / 2, sound.len() - 1] {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        fs::write(&pack_file, &changed).unwrap();
        for error in [
            store.unpack_file(&path, &mut |_, _| ()).unwrap_err(),
            store.open_file(&path).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Damaged { .. }), "{at}: {error}");
        }
        assert!(is_packed_file(&path));
        let report = store.fsck(true).unwrap();
        let [finding] = &report.findings[..] else {
            panic!("{report:?}");
        };
        assert_eq!((finding.repair, finding.repaired), (Repair::Keep, false));
        store.prune(&PruneOptions::default()).unwrap();
        assert!(pack_file.exists());
    }
    fs::write(&pack_file, &sound).unwrap();
    // With a list that can't be read, nothing of what it may name is removed.
    let list = list_of(&path);
    let list_bytes = fs::read(&list).unwrap();
    for at in (0..list_bytes.len()).step_by(7) {
        let mut changed = list_bytes.clone();
        changed[at] ^= 1;
        fs::write(&list, &changed).unwrap();
        assert!(store.unpack_file(&path, &mut |_, _| ()).is_err(), "{at}");
        assert!(!store.fsck(false).unwrap().is_clean(), "{at}");
    }
    let pruned = store.prune(&PruneOptions::default()).unwrap();
    assert!(pruned.kept.is_some() && pack_file.exists(), "{pruned:?}");
    fs::write(&list, &list_bytes).unwrap();
    unpack(&store, &path);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn what_would_hardly_become_smaller_and_what_is_no_disk_stays_whole() {
    let store = store();
    let random: Vec<u8> = (0..10_000_u32)
        .flat_map(|block| *micabox_image::Digest::of(&block.to_le_bytes()).as_bytes())
        .collect();
    let random = disk(&store, "random", &[(0, &random)]);
    let odd = disk(&store, "odd", &[]);
    fs::write(&odd, noise(1, 1_000_001)).unwrap();
    let mut session = packing(&store);
    for path in [random, odd] {
        let file = File::open(&path).unwrap();
        let outcome = session.write(&file, &path, &mut |_, _| ()).unwrap();
        assert!(matches!(outcome, FilePacked::Incompressible), "{outcome:?}");
        assert!(!list_of(&path).exists());
    }
    drop(session);
    assert_eq!(packs(&store), 0);
}
