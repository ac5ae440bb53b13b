//! What a client's name of an image means.

use micabox_oci::Reference;

use crate::problem::{Code, Problem};

/// A repository as a client names it.
#[derive(Debug, Clone)]
pub struct Name {
    /// The registry that this one mirrors for the client (`ns`, containerd's convention).
    pub registry: Option<String>,
    /// The path, which may begin with a registry.
    pub path: String,
}

impl Name {
    /// Returns the image that it means: one of the registry that is said, by `ns` or in the path, or else one of
    /// `default`. Never one of another: who asks for one registry's image must not get another's.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: it is no name, or the tag is none.
    pub fn reference(&self, tag: &str, default: &str) -> Result<Reference, Problem> {
        let invalid = |problem: String| Problem::new(Code::NameInvalid, problem);
        let parse = |text: &str| {
            text.parse::<Reference>()
                .map_err(|e| invalid(e.to_string()))
        };
        let path = &self.path;
        let reference = match &self.registry {
            Some(registry) => {
                let said = parse(&format!("{registry}/{path}:{tag}"))?;
                if said.registry() != registry {
                    return Err(invalid(format!(
                        "`{registry}` is no registry's host[:port]"
                    )));
                }
                said
            }
            None => {
                let begins = |own: &Reference| {
                    let rest = path.strip_prefix(own.registry());
                    rest.is_some_and(|rest| rest.starts_with('/'))
                };
                match parse(&format!("{path}:{tag}")) {
                    Ok(own) if begins(&own) => own,
                    _ => parse(&format!("{default}/{path}:{tag}"))?,
                }
            }
        };
        // A path with `@` would make a digest of what is no tag.
        if reference.tag() != Some(tag) || reference.digest().is_some() {
            return Err(invalid(format!("`{path}` is no name of a repository")));
        }
        Ok(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(registry: Option<&str>, path: &str) -> Name {
        Name {
            registry: registry.map(str::to_owned),
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_name_means_one_image() {
        let means = |registry, path, default| -> String {
            let reference = name(registry, path).reference("1", default);
            reference.unwrap().to_string()
        };
        let hub = "docker.io";
        assert_eq!(means(None, "box", hub), "docker.io/library/box:1");
        assert_eq!(means(None, "library/box", hub), "docker.io/library/box:1");
        assert_eq!(
            means(None, "docker.io/team/box", hub),
            "docker.io/team/box:1"
        );
        assert_eq!(means(None, "ghcr.io/team/box", hub), "ghcr.io/team/box:1");
        assert_eq!(
            means(Some("ghcr.io"), "team/box", hub),
            "ghcr.io/team/box:1"
        );
        assert_eq!(means(Some("a:1"), "library/box", hub), "a:1/library/box:1");
        assert_eq!(
            means(Some("a:1"), "my.team_x/box", hub),
            "a:1/my.team_x/box:1"
        );
        assert_eq!(means(None, "team/box", "a:1"), "a:1/team/box:1");
        assert_eq!(
            means(None, "docker.io/library/box", "a:1"),
            "docker.io/library/box:1"
        );
        assert_eq!(
            means(Some(hub), "library/box", "a:1"),
            "docker.io/library/box:1"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let hex = "0".repeat(64);
        for (name, tag) in [
            (name(None, "UPPER"), "1"),
            (name(None, "a//b"), "1"),
            (name(None, "../a"), "1"),
            (name(None, "a"), "-"),
            (name(None, "a"), ".."),
            (name(None, "a@sha256"), &*hex),
            (name(None, "a:1@sha256"), &*hex),
            (name(None, "a:1"), "2"),
            (name(Some("a b"), "box"), "1"),
            (name(Some(""), "box"), "1"),
            (name(Some("ghcr.io/x"), "box"), "1"),
            (name(Some("ghcr.io@x"), "box"), "1"),
            (name(Some("index.docker.io"), "library/box"), "1"),
        ] {
            let refused = name.reference(tag, "docker.io").unwrap_err();
            assert_eq!(refused.code, Code::NameInvalid, "{name:?} {tag}");
        }
    }
}
