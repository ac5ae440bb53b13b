//! Checks the journal's superblock and the lists of orphans.

use alloc::vec::Vec;

use super::state::State;
use super::volume::word;
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::fields;
use crate::format::journal::{
    CHECKSUM_CRC32C, COMPAT_CHECKSUM, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3, INCOMPAT_KNOWN, MAGIC,
    SUPERBLOCK_V1, SUPERBLOCK_V2, Superblock,
};
use crate::format::orphan;

/// Checks the journal, except for what requires replaying it.
pub(super) fn check(state: &mut State) {
    let superblock = &state.volume.superblock;
    let recover = superblock.has_incompat(incompat::RECOVER);
    if !superblock.has_compat(compat::HAS_JOURNAL) {
        if recover {
            state
                .found
                .add("superblock needs_recovery flag is set, but no journal is present");
        }
        let uuid = superblock.journal_uuid != [0; 16];
        if superblock.journal_inode != 0 || uuid {
            state
                .found
                .add("superblock has_journal flag is clear, but a journal is present");
        }
        return;
    }
    if superblock.journal_uuid != [0; 16] {
        state.found.add("superblock names an external journal");
    }
    if recover {
        state
            .found
            .add("the journal needs recovery: it was not replayed for this check");
    }
    if superblock.journal_inode == 0 {
        state.found.add("external journals are not checked");
        return;
    }
    if let Err(problem) = superblock_of_journal(state, recover) {
        let inode = superblock.journal_inode;
        state.found.add(format_args!(
            "superblock has an invalid journal (inode {inode}): {problem}"
        ));
    }
}

fn superblock_of_journal(state: &State, recover: bool) -> Result<(), &'static str> {
    let volume = state.volume;
    let (runs, size) = state.journal.as_ref().ok_or("no such inode")?;
    let first = runs
        .first()
        .filter(|run| run.logical == 0)
        .ok_or("it has no blocks")?;
    let mut block = Vec::new();
    if volume.read_block(first.physical, &mut block).is_err() {
        return Err("its superblock can't be read");
    }
    let log = Superblock::decode(&block);
    let blocks = size / volume.block_size as u64;
    let mapped: u64 = runs.iter().map(|run| run.length).sum();
    if log.magic != MAGIC {
        return Err("its magic number is wrong");
    }
    if ![SUPERBLOCK_V1, SUPERBLOCK_V2].contains(&log.block_type) {
        return Err("its superblock is of no known type");
    }
    if log.block_size as usize != volume.block_size {
        return Err("its blocks are not the filesystem's");
    }
    if u64::from(log.blocks) > blocks || mapped < u64::from(log.blocks) {
        return Err("it is shorter than its superblock says");
    }
    let end = runs.last().map_or(0, |run| run.logical + run.length);
    if end * (volume.block_size as u64) < *size {
        return Err("it is shorter than its size");
    }
    if log.first == 0 || log.first >= log.end() || log.start >= log.blocks {
        return Err("its log is outside of it");
    }
    let later_fields = [
        log.feature_compat,
        log.feature_incompat,
        log.feature_ro_compat,
        log.users,
    ];
    if log.block_type == SUPERBLOCK_V1 && later_fields.iter().any(|&field| field != 0) {
        return Err("it has invalid V2 journal superblock fields (from V1 journal)");
    }
    if log.users > 1 {
        return Err("it has multiple filesystem users");
    }
    if log.block_type == SUPERBLOCK_V2 {
        if log.feature_incompat & !INCOMPAT_KNOWN != 0 || log.feature_ro_compat != 0 {
            return Err("it uses features that are not known");
        }
        let (v2, v3) = (INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3);
        let v1 = log.feature_compat & COMPAT_CHECKSUM != 0;
        if log.has_incompat(v2 | v3) || (log.has_checksums() && v1) {
            return Err("it has several kinds of checksums");
        }
        if log.has_checksums() && log.checksum_type != CHECKSUM_CRC32C {
            return Err("its checksums are of no known kind");
        }
        if log.has_checksums() && Superblock::checksum_of(&block) != log.checksum {
            return Err("its superblock's checksum does not match");
        }
    }
    if log.error != 0 {
        return Err("it was stopped by an error");
    }
    if log.start != 0 && !recover {
        return Err("it has data, but the needs_recovery flag is clear");
    }
    Ok(())
}

/// Checks inodes that were about to be deleted or truncated when the filesystem was last used.
pub(super) fn orphans(state: &mut State) {
    let superblock = &state.volume.superblock;
    if superblock.last_orphan != 0 {
        let inode = superblock.last_orphan;
        state
            .found
            .inode(inode, "was part of the orphaned inode list");
    }
    if !superblock.has_compat(compat::ORPHAN_FILE) {
        if superblock.has_ro_compat(ro_compat::ORPHAN_PRESENT) {
            state
                .found
                .add("feature orphan_present is set but filesystem has no orphan file");
        }
        return;
    }
    let Some((runs, seed)) = state.orphan_file.take() else {
        state.found.add("orphan file is not a regular file");
        return;
    };
    let mut block = Vec::new();
    for run in runs {
        for physical in run.physical..run.physical + run.length {
            if let Err(problem) = state.volume.read_block(physical, &mut block) {
                state.found.add(format_args!("orphan file: {problem}"));
                return;
            }
            let slots = block.len() / 4 - orphan::TAIL_SIZE / 4;
            let checksum: u32 = fields::get(&block, block.len() - 4);
            if word(&block, slots) != orphan::MAGIC
                || (state.volume.has_checksums()
                    && orphan::checksum_of(seed, physical, &block) != checksum)
            {
                state
                    .found
                    .add(format_args!("orphan file block {physical} is not valid"));
            } else if let Some(inode) = (0..slots).map(|slot| word(&block, slot)).find(|&n| n != 0)
            {
                state.found.inode(inode, "was part of the orphan file");
            }
        }
    }
}
