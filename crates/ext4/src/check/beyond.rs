//! Lists where this check is stricter than `e2fsck -fn`.

/// Findings that `e2fsck -fn` does not report: a part of the finding's text, and the reason.
pub const BEYOND_E2FSCK: &[(&str, &str)] = &[
    (
        "marked as having errors",
        "e2fsck removes the mark where it may write; a kernel warns of it at every mount",
    ),
    (
        "was part of the orphan",
        "e2fsck clears orphans where it may write, and with -n does not read their lists",
    ),
    (
        "has EA_INODE flag on filesystem without ea_inode support",
        "Linux opens no such inode; e2fsck does not look at the flag then",
    ),
    (
        "has verity flag on filesystem without verity support",
        "Linux opens no such file; e2fsck does not look at the flag then",
    ),
    (
        "is kept for a feature that is not in use",
        "Linux gives it to the next file, and then e2fsck faults that file's name",
    ),
    (
        "resize inode not valid",
        "e2fsck reads a quarter of the reserved blocks; resize2fs, all of them",
    ),
    (
        "has INLINE_DATA_FL flag but extended attribute not found",
        "Linux finds attributes by the whole name, e2fsck up to its first zero",
    ),
    (
        "beyond inline data of",
        "there is nothing to read there; e2fsck compares the size of directories only",
    ),
    (
        "extended attribute block is invalid",
        "e2fsck checks such an inode again when a name leads to it, and none leads to an internal one",
    ),
    (
        "used as filesystem metadata",
        "e2fsck reports some of them as an internal error, and continues",
    ),
    (
        "in inode 1, shared with filesystem metadata",
        "likewise: a list of bad blocks with one that is in use",
    ),
    (
        "of all its entries is invalid",
        "Linux finds attributes to share by this hash; e2fsck does not look at it",
    ),
    (
        "it is shorter than its size",
        "it fails once all of it is used; e2fsck reads 31 bits of the journal's size",
    ),
    (
        "says it is at depth",
        "Linux reads no such node; e2fsck goes by where it is",
    ),
    (
        "its log is outside of it",
        "Linux mounts no such filesystem; e2fsck looks only if there is something to replay",
    ),
];
