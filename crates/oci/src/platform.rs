//! Platforms (`linux/arm64`, `linux/arm/v7`, `linux(+erofs)/amd64`), and how well an image for one
//! suits another.
//!
//! Names are Go's, as the OCI image specification requires; other spellings in use (`x86_64`,
//! `aarch64`, `armhf`) are normalised like in containerd, whose order of variants is ours, too.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::printable;

/// Features of an image (`os.features`) that every platform here has.
const FEATURES: [&str; 1] = ["erofs"];

/// Operating systems that a platform may name alone.
const SYSTEMS: [&str; 4] = ["linux", "windows", "darwin", "freebsd"];
/// Architectures that a platform may name alone, as a platform has them.
const ARCHITECTURES: [&str; 9] = [
    "386", "amd64", "arm", "arm64", "loong64", "mips64le", "ppc64le", "riscv64", "s390x",
];

/// Why a string is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a platform: expected OS/ARCH[/VARIANT], for example linux/amd64 or linux/arm/v7"
)]
pub struct ParseError(String);

/// An operating system with the features that an image needs of it, an architecture and, for some
/// architectures, a variant of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty for the architecture's baseline.
    variant: String,
    /// Sorted, each once.
    features: Vec<String>,
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
            ("aarch64" | "arm64", "v8" | "v8.0") => ("arm64", ""),
            ("aarch64" | "arm64", "v9.0") => ("arm64", "v9"),
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
            features: Vec::new(),
        }
    }

    /// Returns the platform with these features of its operating system.
    #[must_use]
    pub fn with_features<T: AsRef<str>>(mut self, features: impl IntoIterator<Item = T>) -> Self {
        let features = features.into_iter();
        self.features = features
            .map(|feature| feature.as_ref().to_owned())
            .filter(|feature| !feature.is_empty())
            .collect();
        self.features.sort_unstable();
        self.features.dedup();
        self
    }

    /// Returns the platform with one more feature: images that ask for all of them go before others.
    #[must_use]
    pub fn and_feature(self, feature: &str) -> Self {
        let mut features = self.features.clone();
        features.push(feature.to_owned());
        self.with_features(features)
    }

    /// Returns the platform of sandboxes on this machine: Linux on the host's processor.
    pub fn host() -> Self {
        static HOST: OnceLock<Platform> = OnceLock::new();
        let find = || {
            let architecture = match std::env::consts::ARCH {
                "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
                "powerpc64" => "ppc64",
                "loongarch64" => "loong64",
                // Go and Rust agree on the rest, apart from what `new` normalises.
                other => other,
            };
            Self::new("linux", architecture, level())
        };
        HOST.get_or_init(find).clone()
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

    /// Returns whether an image for the platform asks for this feature of its operating system.
    #[must_use]
    pub fn has_feature(&self, name: &str) -> bool {
        self.features.iter().any(|feature| feature == name)
    }

    /// Returns how well `self` runs an image made for `offered`: 0 is an exact match, higher
    /// numbers are other features than wanted, and older variants. `None` if it can't.
    pub fn suits(&self, offered: &Platform) -> Option<usize> {
        let has = |feature: &String| {
            FEATURES.contains(&feature.as_str()) || self.features.contains(feature)
        };
        if self.os != offered.os
            || self.architecture != offered.architecture
            || !offered.features.iter().all(has)
        {
            return None;
        }
        let variants = self.variants();
        let place = variants.iter().position(|one| *one == offered.variant)?;
        let others = if self.features == offered.features {
            0
        } else {
            variants.len()
        };
        Some(others + place)
    }

    /// Returns the variants whose programs this one runs, newest first.
    fn variants(&self) -> Vec<String> {
        let named = |architecture: &str, variant: String| {
            Self::new("linux", architecture, &variant).variant
        };
        let version = || {
            let (major, minor) = match self.variant.strip_prefix('v')?.split_once('.') {
                Some((major, minor)) => (major, minor.parse().ok()?),
                None => (self.variant.strip_prefix('v')?, 0),
            };
            Some((major.parse::<u32>().ok()?, minor))
        };
        let found: Option<Vec<String>> = match (self.architecture.as_str(), version()) {
            ("amd64", Some((level @ 1..=9, 0))) => {
                Some((1..=level).rev().map(|level| format!("v{level}")).collect())
            }
            ("arm", Some((version @ 5..=9, 0))) => {
                let versions = (5..=version).rev();
                Some(versions.map(|version| format!("v{version}")).collect())
            }
            ("arm64", Some((8, minor @ 0..=9))) => Some(
                (0..=minor)
                    .rev()
                    .map(|minor| format!("v8.{minor}"))
                    .collect(),
            ),
            // Armv9.0 has all of Armv8.5, 9.1 all of 8.6, and so on.
            ("arm64", Some((9, minor @ 0..=9))) => {
                let nines = (0..=minor).rev().map(|minor| format!("v9.{minor}"));
                let eights = (0..=(minor + 5).min(9)).rev();
                Some(
                    nines
                        .chain(eights.map(|minor| format!("v8.{minor}")))
                        .collect(),
                )
            }
            _ => None,
        };
        let found = found.unwrap_or_else(|| vec![self.variant.clone()]);
        found
            .into_iter()
            .map(|variant| named(&self.architecture, variant))
            .collect()
    }
}

/// Returns the variant that this machine's processor is of; empty for the baseline.
fn level() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let v2 = has!("cmpxchg16b")
            && has!("popcnt")
            && has!("sse3")
            && has!("ssse3")
            && has!("sse4.1")
            && has!("sse4.2");
        let v3 = v2
            && has!("avx")
            && has!("avx2")
            && has!("bmi1")
            && has!("bmi2")
            && has!("f16c")
            && has!("fma")
            && has!("lzcnt")
            && has!("movbe");
        let v4 = v3
            && has!("avx512f")
            && has!("avx512bw")
            && has!("avx512cd")
            && has!("avx512dq")
            && has!("avx512vl");
        match (v4, v3, v2) {
            (true, _, _) => "v4",
            (_, true, _) => "v3",
            (_, _, true) => "v2",
            _ => "",
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        let v1 = has!("crc") && has!("lse") && has!("rdm");
        let v2 = v1 && has!("dpb");
        let v3 = v2 && has!("fcma") && has!("jsconv") && has!("rcpc");
        let v4 = v3 && has!("dit") && has!("dotprod") && has!("flagm") && has!("lse2");
        match (v4, v3, v2, v1) {
            (true, _, _, _) => "v8.4",
            (_, true, _, _) => "v8.3",
            (_, _, true, _) => "v8.2",
            (_, _, _, true) => "v8.1",
            _ => "",
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    ""
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.os)?;
        if !self.features.is_empty() {
            write!(f, "(+{})", self.features.join("+"))?;
        }
        write!(f, "/{}", self.architecture)?;
        if !self.variant.is_empty() {
            write!(f, "/{}", self.variant)?;
        }
        Ok(())
    }
}

/// Returns whether `part` may be a part of a platform's name.
fn is_word(part: &str) -> bool {
    !part.is_empty()
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

impl FromStr for Platform {
    type Err = ParseError;

    /// Parses containerd's spelling: `OS[(+FEATURE...)]/ARCH[/VARIANT]`, or the system or the
    /// architecture alone, which means this machine's for the other.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError(printable(text));
        let (os, rest) = match text.split_once('/') {
            Some((os, rest)) => (os, Some(rest)),
            None => (text, None),
        };
        let (os, features) = match os.strip_suffix(')').and_then(|os| os.split_once('(')) {
            // What may be in front of the first feature, a version, is Windows's only.
            Some((os, features)) => {
                let features = features.strip_prefix('+').filter(|all| !all.is_empty());
                (os, features.ok_or_else(wrong)?)
            }
            None => (os, ""),
        };
        let features = features.split('+').filter(|_| !features.is_empty());
        let words = [os].into_iter().chain(features.clone());
        if !words
            .chain(rest.into_iter().flat_map(|rest| rest.split('/')))
            .all(is_word)
        {
            return Err(wrong());
        }
        let host = Self::host();
        let platform = match rest.map(|rest| rest.split_once('/')) {
            Some(Some((_, variant))) if variant.contains('/') => return Err(wrong()),
            Some(Some((architecture, variant))) => Self::new(os, architecture, variant),
            Some(None) => Self::new(os, rest.unwrap_or_default(), ""),
            None if SYSTEMS.contains(&os.to_ascii_lowercase().as_str()) => {
                Self::new(os, &host.architecture, &host.variant)
            }
            None => {
                let platform = Self::new(&host.os, os, "");
                let is_known = ARCHITECTURES.contains(&platform.architecture.as_str());
                Some(platform)
                    .filter(|_| is_known && features.clone().next().is_none())
                    .ok_or_else(wrong)?
            }
        };
        Ok(platform.with_features(features))
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
            ("linux/arm64/v8.0", "linux/arm64"),
            ("linux/arm64/9.0", "linux/arm64/v9"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("Linux/AMD64", "linux/amd64"),
            ("s390x", "linux/s390x"),
            ("aarch64", "linux/arm64"),
            ("linux(+erofs)/amd64", "linux(+erofs)/amd64"),
            ("linux(+b+a+b)/arm/v6", "linux(+a+b)/arm/v6"),
        ] {
            assert_eq!(platform(written).to_string(), meant, "{written}");
            assert_eq!(platform(meant), platform(written), "{written}");
        }
        assert_eq!(platform("linux"), Platform::host());
        let erofs = platform("linux(+erofs)");
        assert_eq!(erofs, Platform::host().with_features(["erofs"]));
        for bad in [
            "",
            "linus",
            "linux/",
            "/amd64",
            "a/b/c/d",
            "linux/am d64",
            "linux(erofs)/amd64",
            "linux()/amd64",
            "linux(+)/amd64",
            "linux(+erofs/amd64",
            "amd64(+erofs)",
            "linux/amd64(+erofs)",
        ] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }

    fn choose(wanted: &str, offered: &[&str]) -> Option<String> {
        let wanted = platform(wanted);
        let offered = offered.iter().map(|text| platform(text));
        let suitable = offered.filter_map(|one| Some((wanted.suits(&one)?, one)));
        let best = suitable.min_by_key(|(rank, _)| *rank);
        best.map(|(_, platform)| platform.to_string())
    }

    #[test]
    fn a_variant_of_a_platform_accepts_older_ones_but_prefers_its_own() {
        let arms = ["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"];
        assert_eq!(choose("linux/arm", &arms).unwrap(), "linux/arm/v7");
        assert_eq!(choose("linux/arm/v6", &arms).unwrap(), "linux/arm/v6");
        assert_eq!(choose("linux/arm/v8", &arms).unwrap(), "linux/arm/v7");
        let amds = ["windows/amd64", "linux/amd64", "linux/amd64/v3"];
        assert_eq!(choose("linux/amd64", &amds).unwrap(), "linux/amd64");
        assert_eq!(choose("linux/amd64/v2", &amds).unwrap(), "linux/amd64");
        assert_eq!(choose("linux/amd64/v4", &amds).unwrap(), "linux/amd64/v3");
        let arm64s = ["linux/arm64/v9.1", "linux/arm64/v8.1", "linux/arm64"];
        assert_eq!(choose("linux/arm64", &arm64s).unwrap(), "linux/arm64");
        assert_eq!(
            choose("linux/arm64/v8.4", &arm64s).unwrap(),
            "linux/arm64/v8.1"
        );
        assert_eq!(
            choose("linux/arm64/v9", &arm64s).unwrap(),
            "linux/arm64/v8.1"
        );
        assert_eq!(
            choose("linux/arm64/v9.2", &arm64s).unwrap(),
            "linux/arm64/v9.1"
        );
        assert_eq!(choose("linux/arm64/v9", &["linux/arm64/v8.6"]), None);
        assert!(choose("linux/arm64/v9.1", &["linux/arm64/v8.6"]).is_some());
        // Newer than requested, another architecture, or a variant that isn't a number.
        assert_eq!(choose("linux/amd64", &["linux/amd64/v2"]), None);
        assert_eq!(choose("linux/arm64", &arms), None);
        assert_eq!(choose("linux/arm64", &["linux/arm64/weird"]), None);
        assert_eq!(choose("linux/amd64", &["unknown/unknown"]), None);
        for own in [
            "linux/riscv64",
            "linux/arm64/weird",
            "linux/amd64/v99999999999",
        ] {
            assert_eq!(choose(own, &[own]).unwrap(), own);
        }
    }

    #[test]
    fn features_that_are_unknown_are_needed_and_others_preferred() {
        let both = [
            "linux(+erofs)/amd64/v2",
            "linux/amd64",
            "linux(+martian)/amd64",
        ];
        assert_eq!(choose("linux/amd64/v2", &both).unwrap(), both[1]);
        assert_eq!(choose("linux(+erofs)/amd64/v2", &both).unwrap(), both[0]);
        // Only a preference: an archive of the same image will do.
        assert_eq!(choose("linux(+erofs)/amd64", &both[1..]).unwrap(), both[1]);
        assert_eq!(choose("linux/amd64/v2", &both[..1]).unwrap(), both[0]);
        assert_eq!(choose("linux/amd64", &both[2..]), None);
        assert_eq!(choose("linux(+martian)/amd64", &both).unwrap(), both[2]);
    }

    #[test]
    fn the_host_is_linux() {
        let host = Platform::host();
        assert_eq!(host.os(), "linux");
        assert_eq!(host.suits(&host), Some(0));
        let baseline = Platform::new("linux", host.architecture(), "");
        assert!(host.suits(&baseline).is_some());
    }
}
