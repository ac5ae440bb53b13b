//! Folders of the host and volumes, as `docker run --volume` has them.

use std::str::FromStr;

use super::WordError;
use super::mount::{absolute, is_propagation, no_copy};
use crate::Mount;

/// A mount of a folder or file of the host, or of a volume: `[HOST|NAME:]PATH[:OPTIONS]`. The host's path has a slash, or
/// begins with `.` or `~`; it is as it is written, also if it is relative. A volume of the sandbox's own has no name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeWord(pub Mount);

impl FromStr for VolumeWord {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        volume(text).map(Self)
    }
}

fn volume(text: &str) -> Result<Mount, WordError> {
    const EXPECTED: &str = "expected [HOST|NAME:]PATH[:ro]";
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, options) = match *parts.as_slice() {
        [target] => return Ok(Mount::own_volume("", absolute(target)?)),
        [source, target] => (source, target, ""),
        [source, target, options] => (source, target, options),
        _ => return Err(format!("`{text}`: {EXPECTED}").into()),
    };
    if source.is_empty() {
        return Err(format!("`{text}`: {EXPECTED}").into());
    }
    let is_path = source.contains('/') || source.starts_with(['.', '~']);
    let mut mount = if is_path {
        Mount::bind(source, absolute(target)?)
    } else {
        Mount::volume(source, absolute(target)?)
    };
    let (mut is_writable, mut is_read_only) = (false, false);
    for option in options.split(',') {
        match option {
            // What means something to SELinux and to other systems than Linux.
            "" | "z" | "Z" | "delegated" | "consistent" => {}
            "rw" => is_writable = true,
            "ro" => is_read_only = true,
            "cached" => mount = mount.cached(),
            "nocopy" if !is_path => no_copy(&mut mount),
            _ if is_path && is_propagation(option) => {}
            _ if is_path => return Err(format!("`{option}`: expected ro, rw or cached").into()),
            _ => return Err(format!("`{option}`: expected ro, rw or nocopy").into()),
        }
    }
    if is_writable && is_read_only {
        return Err(format!("`{options}`: ro and rw exclude each other").into());
    }
    mount.read_only = is_read_only;
    Ok(mount)
}

#[cfg(test)]
mod tests {
    use super::super::MountWord;
    use super::*;

    fn one(text: &str) -> Result<Mount, WordError> {
        text.parse().map(|VolumeWord(mount)| mount)
    }

    fn long(text: &str) -> Mount {
        match text.parse() {
            Ok(MountWord::Mount(mount)) => mount,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_volume_has_a_name_a_path_and_options() {
        assert_eq!(one("data:/a").unwrap(), Mount::volume("data", "/a"));
        let read_only = Mount::volume("data", "/a").read_only();
        assert_eq!(one("data:/a:ro").unwrap(), read_only);
        assert_eq!(long("src=data,dst=/a,readonly"), read_only);
        let no_copy = one("data:/a:rw,nocopy").unwrap();
        assert_eq!(long("type=volume,src=data,dst=/a,volume-nocopy=1"), no_copy);
        for (text, why) in [
            ("data", "not absolute"),
            ("data:a", "not absolute"),
            (":/a", "expected [HOST|NAME:]PATH"),
            ("data:/a:ro:x", "expected [HOST|NAME:]PATH"),
            ("data:/a:rslave", "`rslave`: expected ro"),
            ("./data:/a:nocopy", "`nocopy`: expected ro"),
            ("./data:/a:ro,rw", "exclude"),
            ("data:/a:blue", "`blue`: expected ro"),
            ("./data:/a:blue", "`blue`: expected ro"),
            ("./data:a", "not absolute"),
        ] {
            let error = one(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_volume_without_a_name_is_the_sandboxs_own() {
        assert_eq!(one("/a").unwrap(), Mount::own_volume("", "/a"));
        for text in ["type=volume,dst=/a", "dst=/a", "type=volume,src=,dst=/a"] {
            assert_eq!(long(text), Mount::own_volume("", "/a"));
        }
    }

    #[test]
    fn a_folder_of_the_host_has_a_slash() {
        for (text, source, read_only) in [
            ("/a:/b", "/a", false),
            ("/a:/b:ro", "/a", true),
            ("./a:/b:rw,z", "./a", false),
            ("~/a:/b", "~/a", false),
            ("/a:/b:ro,rslave", "/a", true),
            ("/a:/b:shared,delegated", "/a", false),
            ("/a:/b:rprivate,slave,rshared,private,Z", "/a", false),
            ("a/c:/b", "a/c", false),
        ] {
            let wanted = Mount {
                read_only,
                ..Mount::bind(source, "/b")
            };
            assert_eq!(one(text).unwrap(), wanted);
        }
        let read_only = Mount::bind("a", "/b").read_only();
        assert_eq!(long("Type=Bind,src=a,dst=/b,ro"), read_only);
        for text in ["./a:/b:cached", "./a:/b:rw,cached"] {
            assert_eq!(one(text).unwrap(), Mount::bind("./a", "/b").cached());
        }
    }
}
