//! What a request asks for, by its path.

use micabox_oci::Digest;

use crate::problem::{Code, Problem};

/// Longest name of a repository, as in references.
const NAME: usize = 255;

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// Whether this is a registry.
    Registry,
    /// The names of all repositories.
    Catalog,
    /// The tags of a repository.
    Tags(&'a str),
    /// A manifest by a tag.
    Tag(&'a str, &'a str),
    /// A manifest of a repository by its digest.
    Manifest(&'a str, Digest),
    /// A blob.
    Blob(Digest),
}

impl<'a> Asked<'a> {
    /// Parses a path, which has no escapes in any client that there is.
    ///
    /// # Errors
    ///
    /// A [`Problem`] for the client: no such path, or an invalid digest in it.
    pub fn of(path: &'a str) -> Result<Self, Problem> {
        let unknown = || Problem::new(Code::Unsupported, format!("there is nothing at {path}"));
        let rest = match path {
            "/v2" | "/v2/" => return Ok(Self::Registry),
            "/v2/_catalog" => return Ok(Self::Catalog),
            path => path.strip_prefix("/v2/").ok_or_else(unknown)?,
        };
        // A repository's name has slashes, what comes after it has none.
        let (before, last) = rest.rsplit_once('/').ok_or_else(unknown)?;
        let (name, kind) = before.rsplit_once('/').ok_or_else(unknown)?;
        if name.is_empty() || name.len() > NAME {
            return Err(Problem::new(
                Code::NameInvalid,
                "the name is no repository's",
            ));
        }
        let digest = |text: &str| {
            let wrong =
                |_| Problem::new(Code::DigestInvalid, format!("`{text}` is no sha256 digest"));
            text.parse::<Digest>().map_err(wrong)
        };
        match (kind, last) {
            ("tags", "list") => Ok(Self::Tags(name)),
            ("manifests", last) if last.contains(':') => {
                digest(last).map(|digest| Self::Manifest(name, digest))
            }
            ("manifests", tag) => Ok(Self::Tag(name, tag)),
            ("blobs", last) => digest(last).map(Self::Blob),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_slashes_and_kinds_come_last() {
        let digest = Digest::of(b"");
        let of = |path: &str| format!("{:?}", Asked::of(path).map_err(|problem| problem.code));
        for (path, asked) in [
            ("/v2/", "Ok(Registry)".to_owned()),
            ("/v2/_catalog", "Ok(Catalog)".into()),
            ("/v2/a/b/c/tags/list", "Ok(Tags(\"a/b/c\"))".into()),
            (
                "/v2/blobs/manifests/v1",
                "Ok(Tag(\"blobs\", \"v1\"))".into(),
            ),
            ("/v2/a/tags/tags/list", "Ok(Tags(\"a/tags\"))".into()),
            (
                &format!("/v2/a/blobs/{digest}"),
                format!("Ok(Blob({digest:?}))"),
            ),
            (
                &format!("/v2/a/manifests/{digest}"),
                format!("Ok(Manifest(\"a\", {digest:?}))"),
            ),
            (
                &format!("/v2/a/referrers/{digest}"),
                "Err(Unsupported)".into(),
            ),
            ("/v2/a/blobs/sha256:00", "Err(DigestInvalid)".into()),
            ("/v2/a/manifests/sha512:00", "Err(DigestInvalid)".into()),
            ("/v2/a/blobs/uploads/", "Err(Unsupported)".into()),
            ("/v2//manifests/v1", "Err(NameInvalid)".into()),
            ("/v2/manifests/v1", "Err(Unsupported)".into()),
            ("/v1/a/manifests/v1", "Err(Unsupported)".into()),
            ("/", "Err(Unsupported)".into()),
        ] {
            assert_eq!(of(path), asked, "{path}");
        }
        let long = format!("/v2/{}/tags/list", "a/".repeat(200));
        assert_eq!(of(&long), "Err(NameInvalid)");
    }
}
