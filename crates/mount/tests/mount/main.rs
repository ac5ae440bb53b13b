//! Filesystems in memory, beside the kernel's own.

mod holes;
mod idmap;
#[expect(dead_code, reason = "tests of other crates use more of it")]
#[path = "../../../overlay/tests/support"]
mod overlay {
    pub mod case;
    pub mod history;
    pub mod tree;
}
mod overlayfs;
mod setid;
mod support;
mod tmpfs;
mod uring;
