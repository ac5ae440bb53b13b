//! Finds a kernel panic's reason in a guest's console output.

/// Returns the kernel's reason for a panic, if `console` shows one.
pub(crate) fn panic_message(console: &str) -> Option<String> {
    const MARK: &str = "Kernel panic - not syncing: ";
    let at = console.rfind(MARK)?;
    let rest = console.get(at + MARK.len()..)?;
    Some(rest.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_among_other_lines() {
        let console = "[    0.5] x\n[    0.6] Kernel panic - not syncing: No working init found.  \n\
                       [    0.6] CPU: 0\n";
        assert_eq!(
            panic_message(console).as_deref(),
            Some("No working init found.")
        );
        assert_eq!(panic_message("all well\n"), None);
        assert_eq!(
            panic_message("Kernel panic - not syncing: ").as_deref(),
            Some("")
        );
    }
}
