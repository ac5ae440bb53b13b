//! Why no devices can be planned for an image or a root disk.

use std::path::PathBuf;

use micabox_spec::{Root, Transport};

/// Most layers of a stacked root: overlayfs takes 500 (OVL_MAX_STACK of fs/overlayfs), of which the agent needs
/// one for its mount points, and one for changes before the start.
pub const MOST_LAYERS: usize = 498;

/// Why an image or root disk can't be given to a machine as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More devices than a machine can have.
    #[error(
        "the image needs {needed} devices over {transport} with a {root} root, and a machine \
         has at most {limit}; use the blk transport with a merged root"
    )]
    TooManyDevices {
        /// Devices needed.
        needed: usize,
        /// Devices that a machine can have.
        limit: usize,
        /// The transport.
        transport: Transport,
        /// The root.
        root: Root,
    },
    /// More layers than one overlay can have.
    #[error("the image has {layers} layers, and a stacked root has at most {MOST_LAYERS}")]
    TooManyLayers {
        /// Layers with files.
        layers: usize,
    },
    /// The root disk can't be mapped as pmem.
    #[error("{} can't be mapped as pmem: {why}; use the blk transport", path.display())]
    Unmapped {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}
