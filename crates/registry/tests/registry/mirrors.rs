//! Hosts of mirrors, by the form in which they name credentials and settings.

use micabox_registry::Mirror;
use serde_json::json;

fn host(url: &str) -> Option<String> {
    let mirror: Option<Mirror> = serde_json::from_value(json!(url)).ok();
    mirror.map(|mirror| mirror.registry)
}

#[test]
fn a_mirrors_host_may_have_letters_beyond_ascii() {
    for (url, expected) in [
        (
            "https://bücher.example:5000/x",
            "xn--bcher-kva.example:5000",
        ),
        ("https://BÜCHER.example", "xn--bcher-kva.example"),
        ("https://bu\u{308}cher.example", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("https://straße.example", "xn--strae-oqa.example"),
        ("https://例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("https://אתר.example", "xn--4db2cf.example"),
        ("https://１２７.0.0.1:5000", "127.0.0.1:5000"),
    ] {
        assert_eq!(host(url).as_deref(), Some(expected), "{url}");
    }
    for url in [
        "https://xn--a.example",      // Punycode of nothing
        "https://a\u{300}א.example",  // right-to-left after left-to-right
        "https://\u{300}a.example",   // begins with a mark
        "https://a／b.example",       // a slash, once normalised
        "https://a\u{200d}b.example", // a joiner that joins nothing
    ] {
        assert_eq!(host(url), None, "{url}");
    }
}
