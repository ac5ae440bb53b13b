//! What is read, in pieces.

/// What a hole reads as.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Adds bytes to pieces, and zeros up to `length`.
pub(super) fn push<'a>(pieces: &mut Vec<&'a [u8]>, bytes: &'a [u8], length: usize) {
    let mut missing = length - bytes.len();
    if !bytes.is_empty() {
        pieces.push(bytes);
    }
    while missing > 0 {
        let zeros = ZEROS.get(..missing).unwrap_or(&ZEROS);
        pieces.push(zeros);
        missing -= zeros.len();
    }
}
