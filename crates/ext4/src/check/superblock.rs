//! Checks superblock fields whose errors do not make the rest unreadable.

use super::finding::Findings;
use super::special::quota_inodes;
use super::volume::Volume;
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::inode::GOOD_OLD_SIZE;

/// `mmp_magic`, and `mmp_seq` of a filesystem that is not in use.
const MMP_MAGIC: u32 = 0x004D_4D50;
const MMP_CLEAN: u32 = 0xFF4D_4D50;

/// Checks fields of the superblock.
pub(super) fn check(volume: &Volume, found: &mut Findings) {
    let superblock = &volume.superblock;
    let room = volume.inode_size - GOOD_OLD_SIZE;
    let sizes = [
        ("required", superblock.min_extra_isize),
        ("desired", superblock.want_extra_isize),
    ];
    for (which, size) in sizes {
        let size = usize::from(size);
        if room > 0 && size != 0 && (size < 4 || size > room || !size.is_multiple_of(4)) {
            found.add(format_args!(
                "bad {which} extra isize in superblock ({size})"
            ));
        }
    }
    for number in quota_inodes(superblock) {
        // Numbers with another use, and numbers of nonexistent inodes.
        let taken = matches!(number, 1 | 2 | 5..=10) || number > superblock.inodes_count;
        if taken {
            found.add(format_args!("invalid quota inode {number}"));
        }
    }
    let quota = superblock.has_ro_compat(ro_compat::QUOTA);
    let [user, group, _] = quota_inodes(superblock).map(|number| if quota { 0 } else { number });
    let orphans = if superblock.has_compat(compat::ORPHAN_FILE) {
        0
    } else {
        superblock.orphan_file_inode
    };
    for number in [user, group, orphans] {
        if number >= superblock.first_file_inode() && number <= superblock.inodes_count {
            found.add(format_args!(
                "inode {number} is kept for a feature that is not in use"
            ));
        }
    }
    if superblock.has_ro_compat(ro_compat::METADATA_CSUM | ro_compat::GDT_CSUM) {
        found.add("metadata_csum supersedes uninit_bg; both feature bits cannot be set");
    }
    if superblock.has_incompat(incompat::CSUM_SEED) && !superblock.has_checksums() {
        found.add("metadata_csum_seed is not necessary without metadata_csum");
    }
    if superblock.has_incompat(incompat::MMP) {
        let mut block = alloc::vec::Vec::new();
        let read = volume.read_block(superblock.mmp_block, &mut block);
        let (magic, sequence) = (
            super::volume::word(&block, 0),
            super::volume::word(&block, 1),
        );
        if read.is_err() || magic != MMP_MAGIC {
            found.add("superblock has invalid MMP magic");
        } else if sequence != MMP_CLEAN {
            found.add("MMP block says that the filesystem is in use");
        }
    }
}
