//! The findings of a check.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Maximum number of findings kept; a thoroughly broken image would have millions.
pub(super) const FINDINGS_MAX: usize = 500;

/// A defect of a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The defective inode; `None` for the filesystem as a whole.
    pub inode: Option<u32>,
    /// Description of the defect, in e2fsck's terms.
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

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    more: u64,
}

impl Findings {
    /// Records a problem of the filesystem as a whole.
    pub(super) fn add(&mut self, problem: impl fmt::Display) {
        self.note(None, &problem);
    }

    /// Records a problem of an inode.
    pub(super) fn inode(&mut self, inode: u32, problem: impl fmt::Display) {
        self.note(Some(inode), &problem);
    }

    /// Whether further problems will not be listed.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() >= FINDINGS_MAX
    }

    /// Returns all findings, and the number of those left out.
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
