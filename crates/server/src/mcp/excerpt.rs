//! An output of any length, of which the beginning and the end are kept.

use std::collections::VecDeque;

/// Bytes of the beginning that are kept.
const HEAD: usize = 8 << 10;

/// Bytes of the end that are kept: what went wrong is mostly said there.
const TAIL: usize = 24 << 10;

/// Most bytes of a line that [`last_line`] looks at.
const LINE: usize = 1024;

/// The beginning and the end of an output.
#[derive(Debug, Default)]
pub struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

/// An excerpt as text, which says what was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// How many bytes are left out.
    pub left_out: u64,
    /// Whether the rest is UTF-8; else some bytes are replaced in the text.
    pub is_utf8: bool,
}

impl Excerpt {
    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(room);
        self.head.extend(head);
        self.tail.extend(tail);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// Returns what is there, and begins anew. If more follows, the beginning of a character waits for its rest.
    pub fn take(&mut self, is_over: bool) -> Text {
        let mut taken = std::mem::take(self);
        if taken.left_out == 0 {
            taken.head.extend(taken.tail);
            let whole = if is_over {
                taken.head.len()
            } else {
                whole_characters(&taken.head)
            };
            self.push(&taken.head.split_off(whole));
            let (text, is_utf8) = text(taken.head);
            return Text {
                text,
                left_out: 0,
                is_utf8,
            };
        }
        let whole = whole_characters(&taken.head);
        taken.left_out += (taken.head.len() - whole) as u64;
        taken.head.truncate(whole);
        for _ in 0..3 {
            if taken.tail.front().is_some_and(|byte| byte & 0xc0 == 0x80) {
                taken.tail.pop_front();
                taken.left_out += 1;
            }
        }
        let mut tail: Vec<u8> = taken.tail.into();
        if !is_over {
            let whole = whole_characters(&tail);
            self.push(&tail.split_off(whole));
        }
        let ((head, head_is), (tail, tail_is)) = (text(taken.head), text(tail));
        Text {
            text: format!(
                "{head}\n[... {} bytes left out ...]\n{tail}",
                taken.left_out
            ),
            left_out: taken.left_out,
            is_utf8: head_is && tail_is,
        }
    }
}

/// Returns how many bytes there are before the beginning of a character at the end, if there is one.
fn whole_characters(bytes: &[u8]) -> usize {
    // A character has four bytes at most; what is no text before it does not matter.
    let last = bytes.iter().rev().take(4);
    let lead = last.clone().position(|byte| byte & 0xc0 != 0x80);
    let Some((back, lead)) = lead.and_then(|back| Some((back, last.clone().nth(back)?))) else {
        return bytes.len();
    };
    let length = match lead {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if length > back + 1 {
        bytes.len() - back - 1
    } else {
        bytes.len()
    }
}

/// Returns text, with bytes that are no text replaced, and whether there were none.
fn text(bytes: Vec<u8>) -> (String, bool) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => (
            String::from_utf8_lossy(error.as_bytes()).into_owned(),
            false,
        ),
    }
}

/// Returns the last line with something on it, or its beginning; a carriage return begins a line, too.
pub fn last_line(piece: &[u8]) -> Option<String> {
    let mut lines = piece.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    let line = lines.find(|line| !line.trim_ascii().is_empty())?;
    let line = line.get(..LINE).unwrap_or(line);
    Some(String::from_utf8_lossy(line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Text {
        let mut excerpt = Excerpt::default();
        bytes.chunks(1000).for_each(|piece| excerpt.push(piece));
        excerpt.take(true)
    }

    #[test]
    fn the_beginning_and_the_end_of_an_output_are_kept() {
        let short = of(b"a\xff\n");
        assert_eq!((short.text.as_str(), short.left_out), ("a\u{fffd}\n", 0));
        assert!(!short.is_utf8);
        let text: String = (0..100_000).map(|n| format!("{n} ä\n")).collect();
        let kept = of(text.as_bytes());
        let (head, rest) = kept.text.split_once("\n[... ").unwrap();
        let (note, tail) = rest.split_once(" ...]\n").unwrap();
        assert_eq!(note, format!("{} bytes left out", kept.left_out));
        assert!(text.starts_with(head) && text.ends_with(tail) && kept.is_utf8);
        assert_eq!(head.len() + tail.len() + kept.left_out as usize, text.len());
        assert!(head.len() + tail.len() <= HEAD + TAIL && tail.len() > TAIL - 4);
    }

    #[test]
    fn an_output_that_is_read_as_it_comes_is_text_in_each_piece() {
        for length in [1, 2, 3, 5, 7, HEAD + TAIL + 3] {
            let text = "aä€😀\n".repeat(length);
            let (mut excerpt, mut read) = (Excerpt::default(), String::new());
            for piece in text.as_bytes().chunks(length) {
                excerpt.push(piece);
                let taken = excerpt.take(false);
                assert!(taken.is_utf8, "{length}: {:?}", taken.text);
                read.push_str(&taken.text);
            }
            read.push_str(&excerpt.take(true).text);
            assert!(read == text || read.contains("left out"), "{length}");
        }
        // What never becomes a character is not kept for ever.
        let mut excerpt = Excerpt::default();
        excerpt.push(b"\xff\xe2");
        assert_eq!(excerpt.take(false).text, "\u{fffd}");
        assert_eq!(excerpt.take(true).text, "\u{fffd}");
    }

    #[test]
    fn the_last_line_is_the_last_with_something_on_it() {
        assert_eq!(last_line(b"one\ntwo \n\n").unwrap(), "two");
        assert_eq!(last_line(b"10%\r20%\r").unwrap(), "20%");
        assert_eq!(last_line(b"\n \n"), None);
        assert_eq!(last_line(&[b'x'; 5000]).unwrap().len(), LINE);
    }
}
