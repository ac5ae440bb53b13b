//! Reads archives member by member, with extended attributes decoded.

use std::io::{BufRead, Read};

use crate::{Limits, Member, Reader};

/// The failure that ended the reading of an archive.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset} of the archive, \"{}\": {reason}", name.escape_ascii())]
pub struct MembersError {
    /// Position in bytes from the archive's start.
    pub offset: u64,
    /// Name of the member that was read last.
    pub name: Vec<u8>,
    /// The cause.
    pub reason: String,
}

/// Reads an uncompressed archive from a stream in one pass, for programs that store its members
/// elsewhere than in an image.
pub struct Members<R> {
    reader: Reader<R>,
    limits: Limits,
}

impl<R: BufRead> Members<R> {
    /// Creates a reader of the archive in `input`.
    pub fn new(input: R, limits: Limits) -> Self {
        Self {
            reader: Reader::new(input, limits),
            limits,
        }
    }

    /// Returns the next member with its extended attributes, and skips the unread contents of the
    /// previous one. `None` after the archive's end.
    ///
    /// # Errors
    ///
    /// [`MembersError`]; reading can't continue after it.
    pub fn next_member(&mut self) -> Result<Option<Member>, MembersError> {
        let next = self.reader.next_member();
        let Some(mut member) = next.map_err(|error| self.failure(error.to_string()))? else {
            return Ok(None);
        };
        let decoded = self.reader.take_records().xattrs(self.limits.xattr_size);
        let xattrs = decoded.map_err(|problem| self.failure(problem.to_string()))?;
        member.attributes.xattrs = xattrs.kept;
        Ok(Some(member))
    }

    /// Returns the stored bytes of the member that was read last, without holes.
    pub fn body(&mut self) -> impl Read {
        self.reader.body()
    }

    fn failure(&self, reason: String) -> MembersError {
        MembersError {
            offset: self.reader.offset(),
            name: self.reader.name().to_vec(),
            reason,
        }
    }
}
