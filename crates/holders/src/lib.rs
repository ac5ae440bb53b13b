//! Processes of this program that outlive what started them, what they are sent, and those that hold something for all
//! of a user's sandboxes: among them those that serve files by FUSE which are not whole on this machine, such as the server
//! of an image's layers that are packed, or not all here.

#![forbid(unsafe_code)]

mod holder;
mod image_files;
mod layers;
mod message;
pub mod own_process;
pub mod served;

pub use holder::{Done, Holders, PATIENCE, Wanted, name, not_served, remove, shown, start_process};
pub use image_files::{ImageFile, ImageFiles, Readers, for_reading, open};
pub use layers::{KIND, completes_in_background, connect, is_whole, make_whole};
pub use message::{receive, send};
pub use own_process::OwnProcess;
