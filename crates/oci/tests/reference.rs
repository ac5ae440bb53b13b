//! References: the cases of Docker's own test tables, and references that we refuse.

use proptest::prelude::*;

use micabox_oci::reference::{Reference, ReferenceError, is_loopback};

const HEX: &str = "6f4e69a5ff18d92e7315e3ee31c62165ebf25bfa05cad05c0d09d8f412dae401";

fn parse(text: &str) -> Reference {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_default_registry_and_tag_are_dockers() {
    let digest = format!("@sha256:{HEX}");
    // (written, full, familiar)
    let table = [
        ("python", "docker.io/library/python:latest", "python:latest"),
        (
            "python:3.12-slim",
            "docker.io/library/python:3.12-slim",
            "python:3.12-slim",
        ),
        (
            "docker.io/python",
            "docker.io/library/python:latest",
            "python:latest",
        ),
        (
            "index.docker.io/python",
            "docker.io/library/python:latest",
            "python:latest",
        ),
        (
            "docker.io/library/python",
            "docker.io/library/python:latest",
            "python:latest",
        ),
        (
            "library/python",
            "docker.io/library/python:latest",
            "python:latest",
        ),
        (
            "library/foo/bar",
            "docker.io/library/foo/bar:latest",
            "library/foo/bar:latest",
        ),
        ("user/app:1", "docker.io/user/app:1", "user/app:1"),
        ("a/b/c", "docker.io/a/b/c:latest", "a/b/c:latest"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        (
            "localhost",
            "docker.io/library/localhost:latest",
            "localhost:latest",
        ),
        (
            "localhost:5000",
            "docker.io/library/localhost:5000",
            "localhost:5000",
        ),
        (
            "localhost:5000/x",
            "localhost:5000/x:latest",
            "localhost:5000/x:latest",
        ),
        (
            "127.0.0.1:5000/x:y",
            "127.0.0.1:5000/x:y",
            "127.0.0.1:5000/x:y",
        ),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest"),
        (
            "[2001:db8::1]/x",
            "[2001:db8::1]/x:latest",
            "[2001:db8::1]/x:latest",
        ),
        ("quay.io/o/r:v1", "quay.io/o/r:v1", "quay.io/o/r:v1"),
        ("host:443/r", "host:443/r:latest", "host:443/r:latest"),
        // An upper-case first component can only be a host.
        ("HOST/r", "HOST/r:latest", "HOST/r:latest"),
        (
            "example.com/r",
            "example.com/r:latest",
            "example.com/r:latest",
        ),
        (
            "xn--n3h.com/myimage:xn--n3h.com",
            "xn--n3h.com/myimage:xn--n3h.com",
            "xn--n3h.com/myimage:xn--n3h.com",
        ),
        (
            "foo_bar.com:8080",
            "docker.io/library/foo_bar.com:8080",
            "foo_bar.com:8080",
        ),
        (
            "foo/foo_bar.com:8080",
            "docker.io/foo/foo_bar.com:8080",
            "foo/foo_bar.com:8080",
        ),
        (
            "a__b/c--d/e.f/g_h/i---j",
            "docker.io/a__b/c--d/e.f/g_h/i---j:latest",
            "a__b/c--d/e.f/g_h/i---j:latest",
        ),
        (
            "r:_Under.-Score",
            "docker.io/library/r:_Under.-Score",
            "r:_Under.-Score",
        ),
    ];
    for (text, full, familiar) in table {
        let reference = parse(text);
        assert_eq!(reference.to_string(), full, "{text}");
        assert_eq!(reference.familiar(), familiar, "{text}");
        assert_eq!(parse(full), reference, "{text}");
        assert_eq!(parse(familiar), reference, "{text}");
    }
    for (text, full) in [
        ("python", "docker.io/library/python"),
        ("python:3.12", "docker.io/library/python:3.12"),
        ("localhost:5000/x", "localhost:5000/x"),
        ("localhost:5000/x:y", "localhost:5000/x:y"),
    ] {
        // With a digest no default tag is added, and a given tag stays.
        let reference = parse(&format!("{text}{digest}"));
        assert_eq!(reference.to_string(), format!("{full}{digest}"));
        assert_eq!(
            reference.digest().map(|digest| digest.hex()),
            Some(HEX.into())
        );
    }
}

#[test]
fn the_parts_of_a_reference_are_returned() {
    let reference = parse(&format!("localhost:5000/a/b:c@sha256:{HEX}"));
    assert_eq!(reference.registry(), "localhost:5000");
    assert_eq!(reference.repository(), "a/b");
    assert_eq!(reference.tag(), Some("c"));
    let digest = *reference.digest().unwrap();
    let other = parse("localhost:5000/a/b").with_digest(digest);
    assert_eq!(
        other.to_string(),
        format!("localhost:5000/a/b@sha256:{HEX}")
    );
}

#[test]
fn malformed_references_are_refused() {
    let long = format!("{}/a", "a/".repeat(127) + "a");
    let tag = format!("r:{}", "t".repeat(129));
    for text in [
        "",
        ":",
        ":tag",
        "@sha256:abc",
        " ",
        "a b",
        "a\n",
        "-r",
        "r-",
        "r_",
        ".r",
        "r.",
        "_r",
        "a//b",
        "/a",
        "a/",
        "a..b",
        "a___b",
        "a._b",
        "a-_b",
        "r:",
        "r:-x",
        "r:.x",
        "r:a/b:c d",
        "r:t:u",
        "aa/asdf$$^/aa",
        "http://host/r",
        "https://docker.io/r",
        "host:port/r",
        "host:99999/r",
        "host:/r",
        "[::1/r",
        "[fe80::1%eth0]:5000/r",
        "[]/r",
        "::1/r",
        "-host.com/r",
        "host-.com/r",
        "ho..st/r",
        "r@sha256:abc",
        "r@md5:d41d8cd98f00b204e9800998ecf8427e",
        "r@sha512:abc",
        "r@",
        "r@@",
        "../etc/passwd",
        "a/../b",
        "täg",
        "r:täg",
        "Ａ/b",
        &long,
        &tag,
    ] {
        assert!(text.parse::<Reference>().is_err(), "{text:?} was taken");
    }
    assert!(matches!(
        "Python".parse::<Reference>(),
        Err(ReferenceError::UpperCase(_))
    ));
    assert!(matches!(
        "docker.io/Uppercase".parse::<Reference>(),
        Err(ReferenceError::UpperCase(_))
    ));
    assert!(matches!(
        HEX.parse::<Reference>(),
        Err(ReferenceError::BareDigest(_))
    ));
    // 63 digits are a valid name.
    assert!(HEX[1..].parse::<Reference>().is_ok());
}

#[test]
fn errors_of_a_reference_say_what_to_write_instead() {
    let message = |text: &str| text.parse::<Reference>().unwrap_err().to_string();
    assert!(message("Python").contains("lower case"));
    assert!(message(HEX).contains("REPOSITORY@sha256:"));
    assert!(message("r@sha512:abc").contains("other than sha256"));
}

#[test]
fn loopback_is_this_machine_only() {
    for registry in [
        "localhost",
        "localhost:5000",
        "127.0.0.1",
        "127.8.9.1:80",
        "[::1]",
        "[::1]:5000",
    ] {
        assert!(is_loopback(registry), "{registry}");
    }
    for registry in [
        "docker.io",
        "localhost.example.com",
        "127.0.0.1.nip.io",
        "10.0.0.1:5000",
        "[::2]:1",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
    ] {
        assert!(!is_loopback(registry), "{registry}");
    }
}

proptest! {
    /// Every reference that parses means the same in each of its spellings.
    #[test]
    fn all_spellings_of_a_reference_mean_the_same(text in prop_oneof![
        any::<String>(),
        "[a-zA-Z0-9.:/@_-]{0,40}",
        "([a-z0-9]{1,3}[.:/_-]{0,2}){1,6}(@sha256:[0-9a-f]{64})?",
    ]) {
        if let Ok(reference) = text.parse::<Reference>() {
            prop_assert_eq!(&reference.to_string().parse::<Reference>().unwrap(), &reference);
            prop_assert_eq!(&reference.familiar().parse::<Reference>().unwrap(), &reference);
            prop_assert!(reference.tag().is_some() || reference.digest().is_some());
        }
    }
}

#[test]
fn a_bare_digest_is_not_a_reference() {
    for text in [
        "sha256:abc",
        "sha256",
        "docker.io/library/sha256:abc",
        "library/sha256:1",
    ] {
        let message = text.parse::<Reference>().unwrap_err().to_string();
        assert!(message.contains("looks like a digest"), "{text}: {message}");
    }
    assert!("example.com/sha256:abc".parse::<Reference>().is_ok());
    assert!("team/sha256:abc".parse::<Reference>().is_ok());
}

/// A path at the default registry may begin like another registry's name.
#[test]
fn a_short_spelling_never_means_another_registry() {
    for (text, familiar) in [
        ("docker.io/localhost/debian:12", None),
        ("docker.io/evil.example.com/library/debian:12", None),
        (
            "docker.io/library/evil.example.com/debian:12",
            Some("library/evil.example.com/debian:12"),
        ),
    ] {
        let reference: Reference = text.parse().unwrap();
        assert_eq!(reference.registry(), "docker.io");
        assert_eq!(reference.familiar(), familiar.unwrap_or(text));
    }
    let digits = "0123456789abcdef".repeat(4);
    let text = format!("docker.io/library/{digits}:1");
    let reference: Reference = text.parse().unwrap();
    assert_eq!(reference.familiar().parse(), Ok(reference));
}
