//! The rest of a short operation, whose output is returned and not written.

use std::os::fd::OwnedFd;

use micabox_wire::encode;
use micabox_wire::files::FileReply;
use rustix::fs::{FileType, fstat, tell};
use rustix::io::Errno;

use super::failed::Failed;
use super::work::Work;
use super::{list, operate};

/// How a short operation ended.
#[derive(Debug)]
pub enum Ended {
    /// With so much on stdout, and, if it failed, with this on stderr.
    Over(Vec<u8>, Option<Vec<u8>>),
    /// It has more output than was asked for. Nothing was changed.
    TooLong,
}

/// Returns the operation unless it is known to have more than `most` bytes of output, or may have. Of a file it then
/// reads what there is now.
pub fn shortened(work: Work, most: u64) -> Option<Work> {
    let Work::Read(file, length) = work else {
        return Some(work);
    };
    let left = left(&file)?.min(length.unwrap_or(u64::MAX));
    (left <= most).then_some(Work::Read(file, Some(left)))
}

/// Does the rest of an operation that takes no stdin, if its output has at most `most` bytes.
pub fn end(work: Work, most: usize) -> Ended {
    let mut output = Vec::new();
    let mut is_too_long = false;
    let ended = match work {
        Work::Reply(reply) => append(&reply, &mut output),
        Work::Read(file, length) => {
            let length = length.and_then(|length| usize::try_from(length).ok());
            read(&file, length.unwrap_or(most).min(most), &mut output).map_err(Failed::from)
        }
        Work::Remove(parent, name) => operate::remove_all(&parent, &name),
        Work::List(directory, depth) => list::list(directory, depth, |entry| {
            append(&entry, &mut output)?;
            is_too_long = output.len() > most;
            if is_too_long {
                return Err(Failed::new("the list is long".to_owned()));
            }
            Ok(())
        }),
        _ => Ok(()),
    };
    if is_too_long || output.len() > most {
        return Ended::TooLong;
    }
    let Err(failed) = ended else {
        return Ended::Over(output, None);
    };
    let mut failure = Vec::new();
    // What has no encoding is a failure without words.
    let _ = append(&failed.into(), &mut failure);
    if output.len() + failure.len() > most {
        output.clear();
        failure.truncate(most);
    }
    Ended::Over(output, Some(failure))
}

fn append(reply: &FileReply, output: &mut Vec<u8>) -> Result<(), Failed> {
    encode(reply, output).map_err(|error| Failed::new(error.to_string()))
}

/// Returns how many bytes of a file are left to read. None if that is not known: a device may have no end, and many a
/// file of the kernel's has no size.
fn left(file: &OwnedFd) -> Option<u64> {
    let stat = fstat(file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let size = u64::try_from(stat.st_size).ok();
    let size = size.filter(|size| is_file && *size > 0)?;
    Some(size.saturating_sub(tell(file).ok()?))
}

/// Reads so many bytes, or to the end of the file.
fn read(file: &OwnedFd, length: usize, output: &mut Vec<u8>) -> Result<(), Errno> {
    output.resize(length, 0);
    let mut filled = 0;
    let ended = loop {
        let rest = output.get_mut(filled..).unwrap_or_default();
        if rest.is_empty() {
            break Ok(());
        }
        match rustix::io::read(file, rest) {
            Ok(0) => break Ok(()),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => break Err(errno),
        }
    };
    output.truncate(filled);
    ended
}
