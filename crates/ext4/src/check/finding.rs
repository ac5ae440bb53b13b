//! What is wrong with a filesystem.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Findings that are kept; a thoroughly broken image would have millions.
pub(super) const FINDINGS_MAX: usize = 500;

/// Something wrong with a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The inode at which it was found; `None` for the filesystem as a whole.
    pub inode: Option<u32>,
    /// What it is, in e2fsck's terms.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inode {
            Some(inode) => write!(f, "inode {inode}: {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    more: u64,
}

impl Findings {
    /// Notes a problem of the filesystem as a whole.
    pub(super) fn add(&mut self, problem: impl fmt::Display) {
        self.note(None, &problem);
    }

    /// Notes a problem of an inode.
    pub(super) fn inode(&mut self, inode: u32, problem: impl fmt::Display) {
        self.note(Some(inode), &problem);
    }

    /// Whether more problems would not be listed anyway.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() >= FINDINGS_MAX
    }

    /// Everything, and how much was left out.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        if self.more > 0 {
            let problem = format!("{} more problems are not listed", self.more);
            self.kept.push(Finding {
                inode: None,
                problem,
            });
        }
        self.kept
    }

    fn note(&mut self, inode: Option<u32>, problem: &dyn fmt::Display) {
        if self.kept.len() >= FINDINGS_MAX {
            self.more = self.more.saturating_add(1);
            return;
        }
        let problem = problem.to_string();
        self.kept.push(Finding { inode, problem });
    }
}
