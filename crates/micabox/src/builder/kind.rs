//! What a builder starts, as a type: it decides which settings there are to make.

/// What a [`Builder`](super::Builder) starts.
pub trait Kind: sealed::Sealed {}

/// A sandbox that did not exist before.
pub trait New: Kind {}

/// A sandbox whose machine boots.
pub trait Boots: New {}

/// A new sandbox on an image or a root disk.
#[derive(Clone, Copy, Debug)]
pub enum Fresh {}

/// A new sandbox with a copy of a snapshot's disk.
#[derive(Clone, Copy, Debug)]
pub enum FromDisk {}

/// A new sandbox that continues where the machine of a snapshot was.
#[derive(Clone, Copy, Debug)]
pub enum FromMemory {}

/// The start of a sandbox that was only created, or another start of one that has kept its disk.
#[derive(Clone, Copy, Debug)]
pub enum Restart {}

impl Kind for Fresh {}
impl Kind for FromDisk {}
impl Kind for FromMemory {}
impl Kind for Restart {}

impl New for Fresh {}
impl New for FromDisk {}
impl New for FromMemory {}

impl Boots for Fresh {}
impl Boots for FromDisk {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Fresh {}
    impl Sealed for super::FromDisk {}
    impl Sealed for super::FromMemory {}
    impl Sealed for super::Restart {}
}
