//! Generates names for sandboxes, and checks given ones.

/// Qualities of stones.
const QUALITIES: [&str; 32] = [
    "amber", "bold", "brisk", "bright", "calm", "clear", "crisp", "dense", "dusky", "eager",
    "fine", "flaky", "fresh", "gentle", "glassy", "hazy", "icy", "keen", "light", "lucid", "mild",
    "neat", "pearly", "plain", "quick", "quiet", "rosy", "sheer", "silky", "sleek", "thin",
    "vivid",
];

/// Minerals, micas first.
const MINERALS: [&str; 32] = [
    "biotite",
    "muscovite",
    "phlogopite",
    "lepidolite",
    "zinnwaldite",
    "glauconite",
    "illite",
    "sericite",
    "agate",
    "apatite",
    "azurite",
    "barite",
    "beryl",
    "calcite",
    "chlorite",
    "cuprite",
    "dolomite",
    "epidote",
    "feldspar",
    "fluorite",
    "garnet",
    "gypsum",
    "halite",
    "jasper",
    "kyanite",
    "magnetite",
    "olivine",
    "opal",
    "pyrite",
    "quartz",
    "topaz",
    "zircon",
];

/// Most characters of a name, as of a host name's label.
const MAX_LENGTH: usize = 63;

/// Makes a name of random bytes; from the ninth attempt on, with a number that hardly collides.
pub fn from_random(random: [u8; 4], attempt: usize) -> String {
    let [quality, mineral, high, low] = random;
    let pick = |list: &[&'static str; 32], byte: u8| {
        list.get(usize::from(byte % 32))
            .copied()
            .unwrap_or_default()
    };
    let name = format!("{}-{}", pick(&QUALITIES, quality), pick(&MINERALS, mineral));
    match attempt {
        0..8 => name,
        _ => format!("{name}-{}", u16::from_be_bytes([high, low])),
    }
}

/// Returns whether a sandbox may have this name: 2 to 63 letters, digits, `_`, `.`, `-`, beginning
/// with a letter or digit, as Docker has it.
pub fn is_valid(name: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    name.len() <= MAX_LENGTH
        && name.as_bytes().first().is_some_and(plain)
        && name.len() >= 2
        && name
            .bytes()
            .all(|byte| plain(&byte) || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_are_valid() {
        for byte in 0..=255 {
            for attempt in [0, 9] {
                let name = from_random([byte, 255 - byte, byte, byte], attempt);
                assert!(is_valid(&name), "{name}");
            }
        }
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        for good in ["a1", "web.1", "A_b-c"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "-a",
            ".a",
            "a/b",
            "a b",
            "ä1",
            "..",
            &"x".repeat(64),
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
