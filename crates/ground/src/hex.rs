//! Bytes as hexadecimal digits.

/// Formats bytes as lower-case hexadecimal digits, two for each.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or_default();
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_lower_case_digits() {
        assert_eq!(hex([0, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(hex([]), "");
    }
}
