//! Mounts, as `docker run --mount` has them.

use std::str::FromStr;

use micabox_wire::Tmpfs;

use super::csv::fields;
use super::{Size, WordError, boolean};
use crate::{Mount, MountSource};

/// A mount: `key=value` pairs with commas between. A path of the host is as it is written, also if it is relative. A volume of
/// the sandbox's own has no name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountWord {
    /// A mount.
    Mount(Mount),
    /// A mount of the files of an image, which is yet to be found.
    Image {
        /// Where it is mounted.
        target: String,
        /// The image's name.
        reference: String,
        /// The directory in the image; empty for its root.
        subpath: String,
    },
}

impl FromStr for MountWord {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        mount(text)
    }
}

/// The fields of a mount.
struct Fields<'a> {
    kind: String,
    target: Option<&'a str>,
    source: Option<&'a str>,
    read_only: bool,
    tmpfs: Tmpfs,
    is_new_empty: bool,
    subpath: Option<&'a str>,
    is_cached: bool,
    is_alone: bool,
    /// A key of each type that was used, for those that are of one type only.
    of_types: Vec<(String, String)>,
}

impl<'a> Fields<'a> {
    fn of(fields: &'a [String]) -> Result<Self, WordError> {
        let mut all = Self {
            kind: "volume".to_owned(),
            target: None,
            source: None,
            read_only: false,
            tmpfs: Tmpfs::default(),
            is_new_empty: false,
            subpath: None,
            is_cached: false,
            is_alone: false,
            of_types: Vec::new(),
        };
        for field in fields {
            all.set(field)?;
        }
        Ok(all)
    }

    fn set(&mut self, field: &'a str) -> Result<(), WordError> {
        let (key, value) = field.split_once('=').unwrap_or((field, ""));
        let key = key.to_ascii_lowercase();
        let flag = || {
            if !field.contains('=') {
                return Ok(true);
            }
            boolean(value).ok_or_else(|| format!("`{field}`: expected true or false"))
        };
        let is_flag = matches!(
            key.as_str(),
            "readonly" | "ro" | "volume-nocopy" | "bind-nonrecursive"
        );
        if !field.contains('=') && !is_flag {
            return Err(format!("`{field}`: expected a key=value pair").into());
        }
        match key.as_str() {
            "readonly" | "ro" => self.read_only = flag()?,
            "type" => self.kind = value.to_ascii_lowercase(),
            "target" | "dst" | "destination" => self.target = Some(value),
            "source" | "src" => self.source = Some(value),
            "consistency" => match value {
                "cached" => self.is_cached = true,
                "consistent" | "delegated" | "default" => {}
                _ => {
                    return Err(format!(
                        "`{field}`: expected cached, consistent, delegated or default"
                    )
                    .into());
                }
            },
            "tmpfs-size" => self.tmpfs.size_bytes = Some(size(value)?),
            "tmpfs-mode" => self.tmpfs.mode = Some(mode(value)?),
            "volume-nocopy" => self.is_new_empty = flag()?,
            "volume-driver" if value == "local" => {}
            "volume-driver" => {
                return Err(format!("`{field}`: there is only the driver `local`").into());
            }
            "image-subpath" => self.subpath = Some(value),
            "bind-propagation" if is_propagation(value) => {}
            "bind-propagation" => {
                return Err(format!(
                    "`{field}`: expected private, shared, slave, rprivate, rshared or rslave"
                )
                .into());
            }
            "bind-nonrecursive" => self.is_alone = flag()?,
            "bind-recursive" => self.is_alone = !is_recursive(value)?,
            other => return Err(format!("`{field}`: unexpected key `{other}`").into()),
        }
        let of_type = key.split_once('-').map(|(kind, _)| kind.to_owned());
        self.of_types.extend(of_type.map(|kind| (kind, key)));
        Ok(())
    }
}

fn mount(text: &str) -> Result<MountWord, WordError> {
    let fields = fields(text)?;
    let fields = Fields::of(&fields)?;
    let kind = fields.kind.as_str();
    if !["bind", "volume", "tmpfs", "image"].contains(&kind) {
        return Err(format!("`type={kind}`: expected bind, volume, tmpfs or image").into());
    }
    if let Some((_, key)) = fields.of_types.iter().find(|(of, _)| of != kind) {
        return Err(format!("a mount of type {kind} has no `{key}`").into());
    }
    let target = fields.target.filter(|target| !target.is_empty());
    let target = absolute(target.ok_or("target is required")?)?;
    let source = fields.source.filter(|source| !source.is_empty());
    let mut mount = match (kind, source) {
        ("tmpfs", None) => Mount::tmpfs(target, fields.tmpfs),
        ("tmpfs", Some(_)) => return Err("a mount of type tmpfs has no source".into()),
        ("image", Some(reference)) => {
            return Ok(MountWord::Image {
                target,
                reference: reference.to_owned(),
                subpath: fields.subpath.unwrap_or_default().to_owned(),
            });
        }
        ("image", None) => return Err("a mount of type image needs a name: source=NAME".into()),
        ("bind", Some(source)) => Mount::bind(source, target),
        ("bind", None) => return Err("source is required".into()),
        (_, Some(name)) => Mount::volume(name, target),
        (_, None) => Mount::own_volume("", target),
    };
    if fields.is_new_empty {
        no_copy(&mut mount);
    }
    if fields.is_cached {
        mount = mount.cached();
    }
    if fields.is_alone {
        mount = mount.alone();
    }
    Ok(MountWord::Mount(Mount {
        read_only: fields.read_only,
        ..mount
    }))
}

/// Parses a value of `bind-recursive`: whether what is mounted below a folder is there.
fn is_recursive(value: &str) -> Result<bool, WordError> {
    match value {
        // A folder that is read-only is so with all that is mounted below it.
        "enabled" | "readonly" => Ok(true),
        "disabled" => Ok(false),
        "writable" => Err(
            "`bind-recursive=writable`: a folder that is read-only is so with all that is mounted below it"
                .into(),
        ),
        _ => Err(format!(
            "`bind-recursive={value}`: expected enabled, disabled or readonly"
        )
        .into()),
    }
}

/// Has a new volume stay empty.
pub(super) fn no_copy(mount: &mut Mount) {
    if let MountSource::Volume(source) = &mut mount.source {
        source.no_copy = true;
    }
}

/// Whether a word says how mounts spread between the host and a folder of its in a sandbox. None do, whatever
/// it is: what is mounted on one side after the start is not seen on the other.
pub(super) fn is_propagation(word: &str) -> bool {
    const WORDS: [&str; 3] = ["private", "shared", "slave"];
    WORDS.contains(&word.strip_prefix('r').unwrap_or(word))
}

/// Checks that a path in the sandbox is absolute.
pub(super) fn absolute(target: &str) -> Result<String, WordError> {
    if target.starts_with('/') {
        Ok(target.to_owned())
    } else {
        Err(format!("`{target}`: the path is not absolute").into())
    }
}

pub(super) fn size(text: &str) -> Result<u64, WordError> {
    text.parse().map(|Size(bytes)| bytes)
}

pub(super) fn mode(text: &str) -> Result<u32, WordError> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("`{text}`: expected a mode in octal digits").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<Mount, String> {
        match mount(text) {
            Ok(MountWord::Mount(mount)) => Ok(mount),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn options(mount: &Mount) -> &Tmpfs {
        match &mount.source {
            MountSource::Tmpfs(tmpfs) => tmpfs,
            _ => panic!("{mount:?}"),
        }
    }

    #[test]
    fn a_mount_is_a_line_of_pairs() {
        let full = "type=tmpfs,\"dst=/a,\"\"b\",tmpfs-size=1m,tmpfs-mode=700,readonly";
        let mounted = one(full).unwrap();
        assert_eq!(mounted.target, "/a,\"b");
        assert!(mounted.read_only);
        let found = options(&mounted);
        assert_eq!((found.size_bytes, found.mode), (Some(1 << 20), Some(0o700)));
        assert!(!one("type=tmpfs,target=/a,ro=false").unwrap().read_only);
        for (text, why) in [
            ("type=tmpfs", "target is required"),
            ("type=tmpfs,target", "key=value"),
            ("type=tmpfs,target=a", "not absolute"),
            ("type=tmpfs,target=/a,source=b", "no source"),
            ("type=tmpfs,target=/a,volume-nocopy", "no `volume-nocopy`"),
            ("type=tmpfs,target=/a,colour=red", "unexpected key `colour`"),
            ("type=tmpfs,target=/a,ro=perhaps", "true or false"),
            ("type=nfs,target=/a", "expected bind"),
            ("type=tmpfs,\"target=/a", "quote"),
            ("type=bind,dst=/b", "source is required"),
            ("type=bind,src=/a", "target is required"),
            (
                "type=bind,src=/a,dst=/b,volume-nocopy=1",
                "no `volume-nocopy`",
            ),
            ("source=a,target=/b,tmpfs-size=1m", "no `tmpfs-size`"),
            ("source=a,target=/b,volume-driver=nfs", "driver `local`"),
            ("source=a,target=/b,volume-opt=o=x", "key `volume-opt`"),
            (
                "type=volume,src=a,dst=/b,bind-propagation=rslave",
                "no `bind-propagation`",
            ),
            (
                "type=bind,src=/a,dst=/b,bind-propagation=loud",
                "expected private",
            ),
            (
                "type=bind,src=/a,dst=/b,bind-recursive=writable",
                "is so with all",
            ),
            (
                "type=bind,src=/a,dst=/b,bind-recursive=1",
                "expected enabled",
            ),
            ("type=bind,src=/a,dst=/b,consistency=x", "expected cached"),
            ("type=image,target=/b", "needs a name"),
            (
                "type=image,src=a,target=/b,volume-nocopy=1",
                "no `volume-nocopy`",
            ),
            ("src=a,target=/b,image-subpath=/c", "no `image-subpath`"),
            (
                "type=image,src=a,dst=/b,image-subpath=/c",
                r#"subpath: "/c""#,
            ),
        ] {
            let error = one(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_folder_of_the_host_is_there_with_or_without_what_is_mounted_below() {
        for (recursive, is_alone) in [
            ("bind-recursive=disabled", true),
            ("bind-nonrecursive", true),
            ("bind-recursive=enabled", false),
            ("bind-nonrecursive=false", false),
            ("bind-recursive=readonly,bind-propagation=rslave", false),
        ] {
            let mount = one(&format!("type=bind,src=/a,dst=/b,{recursive}")).unwrap();
            assert_eq!(mount == Mount::bind("/a", "/b").alone(), is_alone);
        }
        for (consistency, is_cached) in [("cached", true), ("consistent", false)] {
            let mount = one(&format!(
                "type=bind,src=/a,dst=/b,consistency={consistency}"
            ));
            let cached = Mount::bind("/a", "/b").cached();
            assert_eq!(mount.unwrap() == cached, is_cached);
        }
    }
}
