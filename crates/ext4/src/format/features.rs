//! Feature bits and their names.

/// `s_feature_compat`: an implementation may ignore unknown bits.
pub mod compat {
    #![allow(missing_docs, reason = "the names are the field's")]
    pub const DIR_PREALLOC: u32 = 0x1;
    pub const IMAGIC_INODES: u32 = 0x2;
    pub const HAS_JOURNAL: u32 = 0x4;
    pub const EXT_ATTR: u32 = 0x8;
    pub const RESIZE_INODE: u32 = 0x10;
    pub const DIR_INDEX: u32 = 0x20;
    pub const LAZY_BG: u32 = 0x40;
    pub const EXCLUDE_INODE: u32 = 0x80;
    pub const EXCLUDE_BITMAP: u32 = 0x100;
    pub const SPARSE_SUPER2: u32 = 0x200;
    pub const FAST_COMMIT: u32 = 0x400;
    pub const STABLE_INODES: u32 = 0x800;
    pub const ORPHAN_FILE: u32 = 0x1000;
}

/// `s_feature_ro_compat`: an implementation must not write if it does not know a bit.
pub mod ro_compat {
    #![allow(missing_docs, reason = "the names are the field's")]
    pub const SPARSE_SUPER: u32 = 0x1;
    pub const LARGE_FILE: u32 = 0x2;
    pub const BTREE_DIR: u32 = 0x4;
    pub const HUGE_FILE: u32 = 0x8;
    pub const GDT_CSUM: u32 = 0x10;
    pub const DIR_NLINK: u32 = 0x20;
    pub const EXTRA_ISIZE: u32 = 0x40;
    pub const HAS_SNAPSHOT: u32 = 0x80;
    pub const QUOTA: u32 = 0x100;
    pub const BIGALLOC: u32 = 0x200;
    pub const METADATA_CSUM: u32 = 0x400;
    pub const REPLICA: u32 = 0x800;
    pub const READONLY: u32 = 0x1000;
    pub const PROJECT: u32 = 0x2000;
    pub const SHARED_BLOCKS: u32 = 0x4000;
    pub const VERITY: u32 = 0x8000;
    /// The orphan file has entries.
    pub const ORPHAN_PRESENT: u32 = 0x10000;
}

/// `s_feature_incompat`: an implementation must not use the filesystem if it does not know a bit.
pub mod incompat {
    #![allow(missing_docs, reason = "the names are the field's")]
    pub const COMPRESSION: u32 = 0x1;
    pub const FILETYPE: u32 = 0x2;
    /// The journal must be replayed.
    pub const RECOVER: u32 = 0x4;
    pub const JOURNAL_DEV: u32 = 0x8;
    pub const META_BG: u32 = 0x10;
    pub const EXTENTS: u32 = 0x40;
    pub const BIT64: u32 = 0x80;
    pub const MMP: u32 = 0x100;
    pub const FLEX_BG: u32 = 0x200;
    pub const EA_INODE: u32 = 0x400;
    pub const DIRDATA: u32 = 0x1000;
    pub const CSUM_SEED: u32 = 0x2000;
    pub const LARGEDIR: u32 = 0x4000;
    pub const INLINE_DATA: u32 = 0x8000;
    pub const ENCRYPT: u32 = 0x10000;
    pub const CASEFOLD: u32 = 0x20000;
}

const COMPAT_NAMES: [(u32, &str); 13] = [
    (compat::DIR_PREALLOC, "dir_prealloc"),
    (compat::IMAGIC_INODES, "imagic_inodes"),
    (compat::HAS_JOURNAL, "has_journal"),
    (compat::EXT_ATTR, "ext_attr"),
    (compat::RESIZE_INODE, "resize_inode"),
    (compat::DIR_INDEX, "dir_index"),
    (compat::LAZY_BG, "lazy_bg"),
    (compat::EXCLUDE_INODE, "snapshot_inode"),
    (compat::EXCLUDE_BITMAP, "snapshot_bitmap"),
    (compat::SPARSE_SUPER2, "sparse_super2"),
    (compat::FAST_COMMIT, "fast_commit"),
    (compat::STABLE_INODES, "stable_inodes"),
    (compat::ORPHAN_FILE, "orphan_file"),
];

const RO_COMPAT_NAMES: [(u32, &str); 17] = [
    (ro_compat::SPARSE_SUPER, "sparse_super"),
    (ro_compat::LARGE_FILE, "large_file"),
    (ro_compat::BTREE_DIR, "btree_dir"),
    (ro_compat::HUGE_FILE, "huge_file"),
    (ro_compat::GDT_CSUM, "uninit_bg"),
    (ro_compat::DIR_NLINK, "dir_nlink"),
    (ro_compat::EXTRA_ISIZE, "extra_isize"),
    (ro_compat::HAS_SNAPSHOT, "has_snapshot"),
    (ro_compat::QUOTA, "quota"),
    (ro_compat::BIGALLOC, "bigalloc"),
    (ro_compat::METADATA_CSUM, "metadata_csum"),
    (ro_compat::REPLICA, "replica"),
    (ro_compat::READONLY, "read-only"),
    (ro_compat::PROJECT, "project"),
    (ro_compat::SHARED_BLOCKS, "shared_blocks"),
    (ro_compat::VERITY, "verity"),
    (ro_compat::ORPHAN_PRESENT, "orphan_present"),
];

const INCOMPAT_NAMES: [(u32, &str); 16] = [
    (incompat::COMPRESSION, "compression"),
    (incompat::FILETYPE, "filetype"),
    (incompat::RECOVER, "needs_recovery"),
    (incompat::JOURNAL_DEV, "journal_dev"),
    (incompat::META_BG, "meta_bg"),
    (incompat::EXTENTS, "extent"),
    (incompat::BIT64, "64bit"),
    (incompat::MMP, "mmp"),
    (incompat::FLEX_BG, "flex_bg"),
    (incompat::EA_INODE, "ea_inode"),
    (incompat::DIRDATA, "dirdata"),
    (incompat::CSUM_SEED, "metadata_csum_seed"),
    (incompat::LARGEDIR, "large_dir"),
    (incompat::INLINE_DATA, "inline_data"),
    (incompat::ENCRYPT, "encrypt"),
    (incompat::CASEFOLD, "casefold"),
];

/// One of the three words of feature bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// `s_feature_compat`.
    Compat,
    /// `s_feature_ro_compat`.
    RoCompat,
    /// `s_feature_incompat`.
    Incompat,
}

/// Returns the name that `mke2fs -O` and `dumpe2fs` have for the lowest bit of `bits`; `None` for a
/// bit without a name.
#[must_use]
pub fn name(set: Set, bits: u32) -> Option<&'static str> {
    let names: &[(u32, &str)] = match set {
        Set::Compat => &COMPAT_NAMES,
        Set::RoCompat => &RO_COMPAT_NAMES,
        Set::Incompat => &INCOMPAT_NAMES,
    };
    let lowest = bits & bits.wrapping_neg();
    names
        .iter()
        .find(|(bit, _)| *bit == lowest)
        .map(|(_, name)| *name)
}
