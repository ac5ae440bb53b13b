//! An output of any length, of which the beginning and the end are kept.

use std::collections::VecDeque;
use std::io::{self, Read};

/// Bytes of the beginning that are kept.
const HEAD: usize = 16 << 10;

/// Bytes of the end that are kept: what went wrong is mostly said there.
const TAIL: usize = 48 << 10;

/// Most bytes of a line that [`Excerpt::last_line`] looks at.
const LINE: usize = 1024;

/// The beginning and the end of an output.
#[derive(Debug, Default)]
pub struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Excerpt {
    /// Reads an output to its end. Tells `seen` of the last line with each piece that arrives.
    pub fn read(mut from: impl Read, mut seen: impl FnMut(&str)) -> io::Result<Self> {
        let mut excerpt = Self::default();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(excerpt),
                Ok(count) => {
                    let piece = buffer.get(..count).unwrap_or_default();
                    excerpt.push(piece);
                    if let Some(line) = last_line(piece) {
                        seen(&line);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(room);
        self.head.extend(head);
        self.tail.extend(tail);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// Returns the text, which says what was left out, and how many bytes that is. Bytes that are no text
    /// are replaced.
    pub fn finish(mut self) -> (String, u64) {
        if self.left_out == 0 {
            self.head.extend(self.tail);
            return (String::from_utf8_lossy(&self.head).into_owned(), 0);
        }
        // Not in the middle of a character.
        if let Err(error) = std::str::from_utf8(&self.head)
            && error.error_len().is_none()
        {
            let whole = error.valid_up_to();
            self.left_out += (self.head.len() - whole) as u64;
            self.head.truncate(whole);
        }
        for _ in 0..3 {
            if self.tail.front().is_some_and(|byte| byte & 0xc0 == 0x80) {
                self.tail.pop_front();
                self.left_out += 1;
            }
        }
        let tail: Vec<u8> = self.tail.into();
        let text = format!(
            "{}\n[... {} bytes left out ...]\n{}",
            String::from_utf8_lossy(&self.head),
            self.left_out,
            String::from_utf8_lossy(&tail)
        );
        (text, self.left_out)
    }
}

/// Returns the last line with something on it, or its beginning; a carriage return begins a line, too.
fn last_line(piece: &[u8]) -> Option<String> {
    let mut lines = piece.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    let line = lines.find(|line| !line.trim_ascii().is_empty())?;
    let line = line.get(..LINE).unwrap_or(line);
    Some(String::from_utf8_lossy(line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_of_an_output_are_kept() {
        let short = Excerpt::read(&b"a\xff\n"[..], |_| {}).unwrap().finish();
        assert_eq!(short, ("a\u{fffd}\n".to_owned(), 0));
        let text: String = (0..100_000).map(|n| format!("{n} ä\n")).collect();
        let mut lines = Vec::new();
        let kept = Excerpt::read(text.as_bytes(), |line| lines.push(line.to_owned())).unwrap();
        let (kept, left_out) = kept.finish();
        let (head, rest) = kept.split_once("\n[... ").unwrap();
        let (note, tail) = rest.split_once(" ...]\n").unwrap();
        assert_eq!(note, format!("{left_out} bytes left out"));
        assert!(text.starts_with(head) && text.ends_with(tail) && !kept.contains('\u{fffd}'));
        assert_eq!(head.len() + tail.len() + left_out as usize, text.len());
        assert!(head.len() + tail.len() <= HEAD + TAIL && tail.len() > TAIL - 4);
        assert_eq!(lines.last().unwrap(), "99999 ä");
    }

    #[test]
    fn the_last_line_is_the_last_with_something_on_it() {
        assert_eq!(last_line(b"one\ntwo \n\n").unwrap(), "two");
        assert_eq!(last_line(b"10%\r20%\r").unwrap(), "20%");
        assert_eq!(last_line(b"\n \n"), None);
        assert_eq!(last_line(&[b'x'; 5000]).unwrap().len(), LINE);
    }
}
