//! Makes foreign text harmless: all of it is visible, and a terminal acts on none of it.
//!
//! Names and messages come from images, disks, guests, snapshots and registries. What a terminal
//! would act on, or show as nothing, is escaped as in the shell's `$'...'`: `\n`, `\x1b`, `\xff`
//! for a byte that is not UTF-8, `\u202e`, `\U000e0001`. That covers control characters (C0, DEL,
//! C1), format characters (those that change the direction of writing, or have no width), blanks
//! other than a space, and unassigned code points.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

use std::os::unix::ffi::OsStrExt;

/// Escapes a name so that it differs from every other one: a backslash is escaped, too, so that
/// `printf %b` gives the name's bytes again.
pub fn name(bytes: &[u8]) -> String {
    // Most names, and the longest lists of them.
    if bytes
        .iter()
        .all(|byte| matches!(byte, b' '..=b'[' | b']'..=b'~'))
    {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_hidden(c) => push_escape(&mut text, c),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Escapes the name of a file.
pub fn path(path: &Path) -> String {
    name(path.as_os_str().as_bytes())
}

/// Escapes text, line feeds included.
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, is_hidden, push_escape)
}

/// Escapes text, and keeps its line feeds.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, |c| c != '\n' && is_hidden(c), push_escape)
}

/// Escapes a JSON document: hidden characters can only be in its strings, where JSON has escapes
/// for them.
pub fn json(document: &str) -> Cow<'_, str> {
    let escape = |text: &mut String, c: char| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(text, "\\u{unit:04x}");
        }
    };
    replace(document, |c| c != '\n' && is_hidden(c), escape)
}

fn replace(
    text: &str,
    is_replaced: impl Fn(char) -> bool,
    push: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    let Some(first) = text.find(&is_replaced) else {
        return Cow::Borrowed(text);
    };
    let (good, rest) = text.split_at(first);
    let mut replaced = String::from(good);
    for c in rest.chars() {
        if is_replaced(c) {
            push(&mut replaced, c);
        } else {
            replaced.push(c);
        }
    }
    Cow::Owned(replaced)
}

fn push_escape(text: &mut String, c: char) {
    let _ = match u32::from(c) {
        0x09 => write!(text, "\\t"),
        0x0a => write!(text, "\\n"),
        0x0d => write!(text, "\\r"),
        code @ ..0x80 => write!(text, "\\x{code:02x}"),
        code @ ..0x1_0000 => write!(text, "\\u{code:04x}"),
        code => write!(text, "\\U{code:08x}"),
    };
}

/// Returns whether a terminal acts on a character or shows nothing for it.
fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    // The standard library knows what can be printed. After a letter, it does not escape marks that
    // combine with the letter.
    let mut buffer = [b'a', 0, 0, 0, 0];
    let length = c.encode_utf8(&mut buffer[1..]).len();
    let pair = std::str::from_utf8(&buffer[..=length]).unwrap_or_default();
    pair.escape_debug().count() != 2 || is_ignorable(c)
}

/// Returns whether a letter or mark is shown as nothing: those with Unicode's property
/// `Default_Ignorable_Code_Point` that are not format characters.
fn is_ignorable(c: char) -> bool {
    matches!(
        u32::from(c),
        0x034f
            | 0x115f..=0x1160
            | 0x17b4..=0x17b5
            | 0x180b..=0x180f
            | 0x3164
            | 0xfe00..=0xfe0f
            | 0xffa0
            | 0xe0100..=0xe01ef
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_not_escaped() {
        for text in [
            "",
            "a b-c_d.e",
            "Größe",
            "日本語",
            "naïve e\u{301}",
            "…",
            "🦀",
            "‘’“”–",
        ] {
            assert_eq!(name(text.as_bytes()), text);
            assert!(matches!(line(text), Cow::Borrowed(_)), "{text:?}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        for (text, escaped) in [
            ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
            ("\0\t\r\n\x7f", "\\x00\\t\\r\\n\\x7f"),
            ("\u{9b}31m", "\\u009b31m"),
            ("a\u{202e}b\u{2066}c", "a\\u202eb\\u2066c"),
            ("a\u{200b}b\u{feff}\u{ad}", "a\\u200bb\\ufeff\\u00ad"),
            ("\u{2028}\u{2029}\u{a0}", "\\u2028\\u2029\\u00a0"),
            ("\u{e0001}\u{fe0f}\u{3164}", "\\U000e0001\\ufe0f\\u3164"),
        ] {
            assert_eq!(line(text), escaped);
            assert_eq!(name(text.as_bytes()), escaped);
            assert_eq!(line(&line(text)), escaped);
        }
        assert_eq!(lines("a\nb\x1b\n"), "a\nb\\x1b\n");
    }

    #[test]
    fn different_names_are_shown_differently() {
        // bash decodes them again.
        for bytes in [
            &b"plain"[..],
            b"\\x1b",
            b"\x1b",
            b"\xff\xfe\xc3",
            b"a\\\xc3\xa4\n\t",
            "\u{9b}\u{202e}\u{e0001}".as_bytes(),
            b"\xc2",
            b"\xe2\x80",
        ] {
            let shown = name(bytes);
            let printed = std::process::Command::new("bash")
                .args(["-c", "LC_ALL=C.UTF-8; printf %b \"$1\"", "bash", &shown])
                .output();
            assert_eq!(printed.unwrap().stdout, bytes, "{shown}");
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({"a\u{9b}": "\u{202e}\u{e0001}\x1b\u{7f}\nä"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert!(!shown.chars().any(|c| c != '\n' && is_hidden(c)), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }
}
