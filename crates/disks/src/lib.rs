//! What sandboxes are made from and what they keep: bases, changes over them, volumes, snapshots. Each is a file or a
//! folder of this machine; what is in it is read by [jailed workers](micabox_parsers).

#![forbid(unsafe_code)]

mod base;
mod commit;
mod flush;
mod freeze;
mod held;
mod packed;
mod patch;
pub mod snapshot;
pub mod upper;
pub mod volume;

pub use base::{Base, digest_of, image_name, mounted_images};
pub use commit::commit_layer;
pub use packed::{Kept, KeptChoice, KeptReport, pack as pack_kept, unpack as unpack_kept};
pub use patch::{Patch, apply, unpack};
pub use snapshot::{
    Arriving, Beside, Departing, Ephemeral, KIND, Landing, Landings, MemoryPart, NewSnapshot,
    Place, Snapshot, Snapshots,
};
pub use upper::{Change, ChangeKind, FrozenDisk, Unread};
pub use volume::{MIN_VOLUME_SIZE, Volume, Volumes};
