//! Headers of a registry's responses: authentication challenges, ranges, pauses before a retry.

use micabox_registry::fuzzing::{challenges, content_range, retry_after};

/// Parses a header's value; the first byte chooses which header.
pub fn header(bytes: &[u8]) {
    let Some((kind, value)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => ranges(value),
        1 => {
            let pause = retry_after(value);
            let digits = value.trim_ascii();
            let is_value = value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
            if is_value && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                let seconds = str::from_utf8(digits)
                    .ok()
                    .and_then(|text| text.parse().ok());
                assert_eq!(pause.map(|pause| pause.as_secs()), seconds);
            }
        }
        _ => logins(value),
    }
}

/// Checks that the numbers found for a range are those in the header.
fn ranges(value: &[u8]) {
    let Ok(value) = str::from_utf8(value) else {
        return;
    };
    let Some((first, _, total)) = content_range(value) else {
        return;
    };
    let rest = value.trim().strip_prefix("bytes ").expect("the unit");
    let (range, all) = rest.split_once('/').expect("a total");
    let number = |text: &str| text.trim().parse::<u64>().ok();
    assert_eq!(
        number(range.split('-').next().unwrap_or_default()),
        Some(first)
    );
    assert_eq!(number(all), total);
}

/// Checks that a challenge's parts are unescaped text from the header, and no longer than it.
fn logins(value: &[u8]) {
    let found = challenges(value);
    let mut length = 0;
    for part in found.iter().flatten().flatten() {
        length += part.len();
        assert!(!part.contains(['\r', '\n', '\0']), "{part:?}");
    }
    // All three parts may be present, and no text may be found twice.
    assert!(length <= value.len(), "{found:?}");
    for [scheme, ..] in &found {
        let scheme = scheme.as_deref().expect("always");
        assert!(!scheme.is_empty() && !scheme.contains(' '), "{scheme:?}");
        let there = value
            .windows(scheme.len())
            .any(|text| text == scheme.as_bytes());
        assert!(there, "{scheme:?}");
    }
}

/// Headers that registries send.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let texts = [
        ("range", "\0bytes 7-11/12"),
        ("unknown", "\0bytes 0-0/*"),
        ("seconds", "\x01120"),
        ("date", "\x01Wed, 21 Oct 2015 07:28:00 GMT"),
        (
            "bearer",
            "\x02Bearer realm=\"https://auth.test/token?a=1,2\",service=\"a \\\"b\\\"\",scope=\"repository:a/b:pull,push\"",
        ),
        (
            "two",
            "\x02Basic realm=\"x\", Bearer realm=\"y\", error=\"z\"",
        ),
        ("token68", "\x02Negotiate YWJj=="),
    ];
    texts
        .map(|(name, text)| (name, text.as_bytes().to_vec()))
        .into()
}
