//! GnuPG decides about signatures.

use micabox_testing::Gpg;

/// Returns who has signed a message and what, if GnuPG takes it as the library of skopeo and podman wants it: one good
/// signature by one of these keys, none of which has expired.
pub fn signed(keys: &[u8], message: &[u8]) -> Option<(String, Vec<u8>)> {
    let gpg = Gpg::new();
    let _ = gpg.try_run(&["--no-autostart", "--import"], keys);
    let options = ["--no-autostart", "--status-fd", "2", "--decrypt"];
    let (_, document, said) = gpg.try_run(&options, message);
    let status: Vec<Vec<&str>> = said
        .lines()
        .filter_map(|line| line.strip_prefix("[GNUPG:] "))
        .map(|line| line.split(' ').collect())
        .collect();
    let count = |name: &str| status.iter().filter(|line| line[0] == name).count();
    // Of a key that has expired or is revoked the word is another.
    if count("NEWSIG") != 1 || count("GOODSIG") != 1 || count("DECRYPTION_OKAY") != 0 {
        return None;
    }
    let valid = status.iter().find(|line| line[0] == "VALIDSIG")?;
    // The primary key's.
    Some((valid.last()?.to_string(), document))
}
