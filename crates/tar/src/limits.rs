//! Limits on the resources of one member.

/// Bounds on one member. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the extended header records and long names together.
    pub header_size: u64,
    /// Length of the path, and of a link's target.
    pub path_length: u64,
    /// Size of all names and values of extended attributes.
    pub xattr_size: u64,
    /// Number of data segments of a sparse file.
    pub sparse_segments: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_size: 4 << 20,
            path_length: 16 << 10,
            xattr_size: 128 << 10,
            sparse_segments: 1 << 20,
        }
    }
}
