//! The words for what programs rarely need. What a word stands for is in `docs/design/images.md`, with
//! the reasons.

/// Documentation for people, and what package managers keep for reports of bugs.
const DOCS: &[&str] = &[
    "/usr/share/bug/*",
    "/usr/share/devhelp/*",
    "/usr/share/doc-base/*",
    "/usr/share/doc/*",
    "/usr/share/gtk-doc/*",
    "/usr/share/help/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/local/share/doc/*",
    "/usr/local/share/info/*",
];

/// Messages in languages other than English, and the sources of locales. Compiled ones stay.
const LOCALES: &[&str] = &[
    "/usr/share/i18n/charmaps/*",
    "/usr/share/i18n/locales/*",
    "/usr/share/locale-langpack/*",
    "/usr/share/locale/*",
    "/usr/local/share/locale/*",
    "!/usr/share/locale/C*",
    "!/usr/share/locale/en*",
    "!/usr/share/locale/locale.alias",
    "!/usr/local/share/locale/en*",
];

/// Manual pages. The directories stay: `update-alternatives` fails without them.
const MAN: &[&str] = &["/usr/share/man/**", "/usr/local/share/man/**"];

/// What package managers can download or compute again. The directories stay.
const CACHES: &[&str] = &[
    "/root/.cache/pip/**",
    "/root/.npm/_cacache/**",
    "/usr/local/share/.cache/yarn/**",
    "/var/cache/apk/**",
    "/var/cache/apt/**",
    "/var/cache/debconf/*-old",
    "/var/cache/dnf/**",
    "/var/cache/ldconfig/**",
    "/var/cache/libdnf5/**",
    "/var/cache/man/**",
    "/var/cache/pacman/pkg/**",
    "/var/cache/yum/**",
    "/var/cache/zypp/**",
    "/var/lib/apt/lists/**",
    "/var/lib/dpkg/*-old",
];

/// Returns the patterns that a word stands for.
pub(super) fn patterns(word: &str) -> Option<impl Iterator<Item = &'static str>> {
    let patterns = match word {
        "docs" => DOCS,
        "locales" => LOCALES,
        "man" => MAN,
        "caches" => CACHES,
        _ => return None,
    };
    Some(patterns.iter().copied())
}
