//! Turns names in an archive into paths inside the layer.

use micabox_tar::whiteout;

/// Linux's `NAME_MAX`.
const NAME_MAX: usize = 255;

/// Why a name is not a valid path inside the layer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("its `..` lead out of the layer")]
    Escapes,
    #[error("a component of its path is longer than 255 bytes")]
    NameTooLong,
    #[error("exceeds `path-depth`")]
    TooDeep,
}

/// Returns the components of `path`, cleaned as text only, like Go's `filepath.Clean` in Docker
/// and containerd: `a/../b` is `b` whatever `a` is, `//` and `.` have no effect, and an absolute
/// path starts at the layer's root, which is its own parent.
pub(super) fn components(path: &[u8], most: u64) -> Result<Vec<&[u8]>, Problem> {
    let absolute = path.starts_with(b"/");
    let mut components = Vec::new();
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => match components.pop() {
                None if !absolute => return Err(Problem::Escapes),
                _ => {}
            },
            _ if name_length(component) > NAME_MAX => return Err(Problem::NameTooLong),
            _ => components.push(component),
        }
    }
    if components.len() as u64 > most {
        return Err(Problem::TooDeep);
    }
    Ok(components)
}

/// Returns the length of a name without a whiteout's prefix: the rest is the name in a lower layer.
fn name_length(component: &[u8]) -> usize {
    component
        .strip_prefix(whiteout::PREFIX)
        .unwrap_or(component)
        .len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(path: &str) -> Result<String, Problem> {
        components(path.as_bytes(), 3)
            .map(|components| String::from_utf8(components.join(&b'/')).unwrap())
    }

    #[test]
    fn paths_are_cleaned_as_text() {
        for (path, cleaned) in [
            ("a/b", "a/b"),
            ("./a//b/.", "a/b"),
            ("/a", "a"),
            ("", ""),
            ("./", ""),
            ("/", ""),
            ("a/../b", "b"),
            ("a/b/c/../../d", "a/d"),
            ("a/..", ""),
            ("/../a", "a"),
            ("...", "..."),
        ] {
            assert_eq!(clean(path).as_deref(), Ok(cleaned), "{path}");
        }
    }

    #[test]
    fn paths_that_lead_out_of_the_layer_are_refused() {
        for path in ["..", "../a", "a/../../b", "./../a"] {
            assert_eq!(clean(path), Err(Problem::Escapes), "{path}");
        }
    }

    #[test]
    fn paths_that_are_too_deep_or_long_are_refused() {
        assert_eq!(clean("a/b/c/d"), Err(Problem::TooDeep));
        assert_eq!(clean(&"x".repeat(256)), Err(Problem::NameTooLong));
        assert!(clean(&"x".repeat(255)).is_ok());
        assert!(clean(&(".wh.".to_owned() + &"x".repeat(255))).is_ok());
        assert!(clean(&(".wh.".to_owned() + &"x".repeat(256))).is_err());
    }
}
