//! Archives member by member, extended attributes decoded.

use std::io::{BufRead, Read};

use crate::{Limits, Member, Reader};

/// Why an archive can't be read on.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset} of the archive, \"{}\": {reason}", name.escape_ascii())]
pub struct MembersError {
    /// Where, in bytes from the archive's start.
    pub offset: u64,
    /// The member that was read last.
    pub name: Vec<u8>,
    /// Why.
    pub reason: String,
}

/// Reads an uncompressed archive from a stream, once, front to back, for programs that put its
/// members elsewhere than into an image.
pub struct Members<R> {
    reader: Reader<R>,
    limits: Limits,
}

impl<R: BufRead> Members<R> {
    /// Members of the archive in `input`.
    pub fn new(input: R, limits: Limits) -> Self {
        Self {
            reader: Reader::new(input, limits),
            limits,
        }
    }

    /// The next member with its extended attributes; the unread rest of the contents of the one
    /// before is skipped. `None` after the archive's end.
    ///
    /// # Errors
    ///
    /// [`MembersError`]; the archive can't be read on.
    pub fn next_member(&mut self) -> Result<Option<Member>, MembersError> {
        let member = self.reader.next_member();
        let Some(mut member) = member.map_err(|error| self.failure(error.to_string()))? else {
            return Ok(None);
        };
        let xattrs = self.reader.take_records().xattrs(self.limits.xattr_size);
        let xattrs = xattrs.map_err(|problem| self.failure(problem.to_string()))?;
        member.attributes.xattrs = xattrs.kept;
        Ok(Some(member))
    }

    /// The stored bytes of the member that was read last, without holes.
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
