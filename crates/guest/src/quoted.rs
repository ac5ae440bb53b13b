//! Paths and names in messages.

/// Formats a path or name for a message: quoted if it is unusual, and cut if it is long.
pub fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 1000;
    let cut = bytes.get(..MOST).unwrap_or(bytes);
    let more = if bytes.len() > MOST { "..." } else { "" };
    match std::str::from_utf8(cut) {
        Ok(text) if !text.is_empty() && !text.contains(|c: char| c.is_control() || c == ' ') => {
            format!("{text}{more}")
        }
        _ => format!("{:?}{more}", String::from_utf8_lossy(cut)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_short_and_printable() {
        assert_eq!(shown(b"/bin/sh"), "/bin/sh");
        assert_eq!(shown(b""), "\"\"");
        assert_eq!(shown(b"a\nb"), "\"a\\nb\"");
        assert!(shown(&[b'x'; 100_000]).len() < 1100);
    }
}
