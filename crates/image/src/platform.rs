//! Platforms (`linux/arm64`, `linux/arm/v7`), and the choice of the best entry of an index for one.
//!
//! Names are Go's, as the OCI image specification requires; other spellings in use (`x86_64`,
//! `aarch64`, `armhf`) are normalised like in containerd.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::printable;

/// Why a string is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a platform: expected OS/ARCH[/VARIANT], for example linux/amd64 or linux/arm/v7"
)]
pub struct ParseError(String);

/// An operating system, an architecture and, for some architectures, a variant of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty for the architecture's baseline.
    variant: String,
}

impl Platform {
    /// Creates a platform from the three fields of a descriptor or an image configuration, and
    /// normalises it. `variant` may be empty.
    pub fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let architecture = architecture.to_ascii_lowercase();
        let mut variant = variant.to_ascii_lowercase();
        if variant.starts_with(|c: char| c.is_ascii_digit()) {
            variant.insert(0, 'v');
        }
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", ""),
            ("x86_64" | "x86-64", variant) => ("amd64", variant),
            ("aarch64" | "arm64", "v8") => ("arm64", ""),
            ("aarch64", variant) => ("arm64", variant),
            ("armhf", _) => ("arm", "v7"),
            ("armel", _) => ("arm", "v6"),
            ("arm", "") => ("arm", "v7"),
            ("i386" | "i686" | "x86", variant) => ("386", variant),
            (architecture, variant) => (architecture, variant),
        };
        Self {
            os: os.to_ascii_lowercase(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        }
    }

    /// Returns the platform of sandboxes on this machine: Linux on the host's processor.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "powerpc64" => "ppc64",
            "loongarch64" => "loong64",
            // Go and Rust agree on the rest, apart from what `new` normalises.
            other => other,
        };
        Self::new("linux", architecture, "")
    }

    /// Returns the operating system: `linux`.
    pub fn os(&self) -> &str {
        &self.os
    }

    /// Returns the architecture in Go's spelling: `amd64`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Returns the variant (`v7`), unless it is the architecture's baseline.
    pub fn variant(&self) -> Option<&str> {
        Some(self.variant.as_str()).filter(|variant| !variant.is_empty())
    }

    /// Returns how well `self` runs an image made for `offered`: 0 is an exact match, higher
    /// numbers are older variants. `None` if it can't.
    pub fn suits(&self, offered: &Platform) -> Option<u32> {
        if self.os != offered.os || self.architecture != offered.architecture {
            return None;
        }
        if self.variant == offered.variant {
            return Some(0);
        }
        // A variant runs everything made for earlier ones.
        let baseline = match self.architecture.as_str() {
            "amd64" => 1,
            "arm64" => 8,
            "arm" => 5,
            _ => return None,
        };
        let number = |variant: &str| match variant.strip_prefix('v') {
            None if variant.is_empty() => Some(baseline),
            None => None,
            Some(digits) => digits.parse::<u32>().ok(),
        };
        let (wanted, offered) = (number(&self.variant)?, number(&offered.variant)?);
        wanted.checked_sub(offered)
    }
}

/// Returns the best entry for `wanted`; of equal ones the first, in the index's order.
///
/// An entry without a platform is never returned: the caller decides what it means.
pub fn best<'a, T>(
    wanted: &Platform,
    entries: impl IntoIterator<Item = (&'a Platform, T)>,
) -> Option<T> {
    entries
        .into_iter()
        .filter_map(|(offered, entry)| Some((wanted.suits(offered)?, entry)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| entry)
}

impl From<&oci_spec::image::Platform> for Platform {
    fn from(platform: &oci_spec::image::Platform) -> Self {
        Self::new(
            &platform.os().to_string(),
            &platform.architecture().to_string(),
            platform.variant().as_deref().unwrap_or_default(),
        )
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if !self.variant.is_empty() {
            write!(f, "/{}", self.variant)?;
        }
        Ok(())
    }
}

impl FromStr for Platform {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let word = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        };
        let parts: Vec<&str> = text.split('/').collect();
        if !parts.iter().all(|part| word(part)) {
            return Err(ParseError(printable(text)));
        }
        match parts[..] {
            [os, architecture] => Ok(Self::new(os, architecture, "")),
            [os, architecture, variant] => Ok(Self::new(os, architecture, variant)),
            _ => Err(ParseError(printable(text))),
        }
    }
}

impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Platform {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_a_platform_are_normalised() {
        for (written, meant) in [
            ("linux/amd64", "linux/amd64"),
            ("linux/x86_64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm64/8", "linux/arm64"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("Linux/AMD64", "linux/amd64"),
        ] {
            assert_eq!(platform(written).to_string(), meant, "{written}");
        }
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/am d64"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_variant_of_a_platform_accepts_older_ones_but_prefers_its_own() {
        let choose = |wanted: &str, offered: &[&str]| {
            let offered: Vec<Platform> = offered.iter().map(|text| platform(text)).collect();
            best(
                &platform(wanted),
                offered.iter().map(|platform| (platform, platform)),
            )
            .map(Platform::to_string)
        };
        let arms = ["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"];
        assert_eq!(choose("linux/arm", &arms).unwrap(), "linux/arm/v7");
        assert_eq!(choose("linux/arm/v6", &arms).unwrap(), "linux/arm/v6");
        assert_eq!(choose("linux/arm/v8", &arms).unwrap(), "linux/arm/v7");
        let amds = ["windows/amd64", "linux/amd64", "linux/amd64/v3"];
        assert_eq!(choose("linux/amd64", &amds).unwrap(), "linux/amd64");
        assert_eq!(choose("linux/amd64/v2", &amds).unwrap(), "linux/amd64");
        assert_eq!(choose("linux/amd64/v4", &amds).unwrap(), "linux/amd64/v3");
        // Newer than requested, another architecture, or a variant that isn't a number.
        assert_eq!(choose("linux/amd64", &["linux/amd64/v2"]), None);
        assert_eq!(choose("linux/arm64", &arms), None);
        assert_eq!(choose("linux/arm64", &["linux/arm64/weird"]), None);
        assert_eq!(choose("linux/amd64", &["unknown/unknown"]), None);
        assert_eq!(
            choose("linux/riscv64", &["linux/riscv64"]).unwrap(),
            "linux/riscv64"
        );
    }

    #[test]
    fn the_host_is_linux() {
        let host = Platform::host();
        assert_eq!(host.os(), "linux");
        assert_eq!(host.suits(&host), Some(0));
    }
}
