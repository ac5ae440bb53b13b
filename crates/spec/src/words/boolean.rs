//! Yes or no.

/// Reads whether a thing is wanted, as Docker does: `1`, `t`, `true`, `0`, `f` or `false`, in any case of letters.
#[must_use]
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}
