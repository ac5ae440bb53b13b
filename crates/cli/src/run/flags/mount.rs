//! `--tmpfs` and `--mount`, with Docker's syntax, and `-v`.

use std::io;

use micabox::words::Size;
use micabox::{BindSource, Image, ImageName, Mount, MountSource, Tmpfs};

use super::sandbox::SandboxArgs;
use super::{boolean, word};
use crate::failure::Failure;
use crate::umask;

/// A value of `--mount`.
#[derive(Clone, Debug)]
pub enum MountFlag {
    /// A mount.
    Mount(Mount),
    /// A mount of the files of an image, which is yet to be found: its name and the directory in it.
    Image {
        /// Where it is mounted.
        target: String,
        /// The image's name.
        reference: String,
        /// The directory in the image; empty for its root.
        subpath: String,
    },
}

impl SandboxArgs {
    /// Returns the mounts in the order in which they are made: those with the shorter targets
    /// first, as in Docker, so that none covers another. `image` finds an image.
    pub fn mounts(
        &self,
        image: impl Fn(&str) -> Result<Image, Failure>,
    ) -> Result<Vec<Mount>, Failure> {
        let mut mounts = self.tmpfs.clone();
        for flag in &self.volume {
            if let MountFlag::Mount(mount) = flag {
                make_missing(mount)?;
            }
        }
        for flag in self.volume.iter().chain(&self.mount) {
            match flag {
                MountFlag::Mount(mount) => mounts.push(mount.clone()),
                MountFlag::Image {
                    target,
                    reference,
                    subpath,
                } => {
                    let image = image(reference)?;
                    let name = ImageName::new(image.reference.as_ref(), &image.manifest_digest);
                    let mount = Mount::image(name, target);
                    mounts.push(mount.subpath(subpath));
                }
            }
        }
        let depth = |target: &str| target.split('/').filter(|part| !part.is_empty()).count();
        mounts.sort_by_key(|mount| depth(&mount.target));
        Ok(mounts)
    }
}

/// Makes the folder of a `-v`, as Docker does.
fn make_missing(mount: &Mount) -> Result<(), Failure> {
    let MountSource::Bind(BindSource { source, .. }) = &mount.source else {
        return Ok(());
    };
    match std::fs::symlink_metadata(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => umask::with_users(|| {
            std::fs::create_dir_all(source)
        })
        .map_err(|error| Failure::new(format!("cannot make the folder `{source}`: {error}"))),
        _ => Ok(()),
    }
}

/// Returns the absolute path of a folder of the host.
pub fn on_host(source: &str) -> Result<String, String> {
    if source.starts_with('~') {
        return Err(format!(
            "`{source}`: a shell replaces ~ only outside quotes: give the whole path, or ./{source}"
        ));
    }
    let path = std::path::absolute(source).map_err(|error| format!("`{source}`: {error}"))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| format!("`{source}`: the path is not UTF-8"))
}

/// Parses a value of `-v`: a volume's name or a path of the host, unless a volume of the sandbox's own is
/// wanted; the path in the sandbox, and options.
pub fn volume(text: &str) -> Result<MountFlag, String> {
    const EXPECTED: &str = "expected [HOST|NAME:]PATH[:ro]";
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, options) = match *parts.as_slice() {
        [target] => return anonymous(absolute(target)?).map(MountFlag::Mount),
        [source, target] => (source, target, ""),
        [source, target, options] => (source, target, options),
        _ => return Err(format!("`{text}`: {EXPECTED}")),
    };
    if source.is_empty() {
        return Err(format!("`{text}`: {EXPECTED}"));
    }
    let is_path = source.contains('/') || source.starts_with(['.', '~']);
    let mut mount = if is_path {
        Mount::bind(on_host(source)?, absolute(target)?)
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
            _ if is_path => return Err(format!("`{option}`: expected ro, rw or cached")),
            _ => return Err(format!("`{option}`: expected ro, rw or nocopy")),
        }
    }
    if is_writable && is_read_only {
        return Err(format!("`{options}`: ro and rw exclude each other"));
    }
    mount.read_only = is_read_only;
    Ok(MountFlag::Mount(mount))
}

/// Makes a mount of a volume of the sandbox's own.
fn anonymous(target: String) -> Result<Mount, String> {
    micabox::anonymous_volume(target).map_err(|error| error.to_string())
}

fn no_copy(mount: &mut Mount) {
    if let MountSource::Volume(source) = &mut mount.source {
        source.no_copy = true;
    }
}

/// Whether a word says how mounts spread between the host and a folder of its in a sandbox. None do, whatever
/// it is: what is mounted on one side after the start is not seen on the other.
fn is_propagation(word: &str) -> bool {
    const WORDS: [&str; 3] = ["private", "shared", "slave"];
    WORDS.contains(&word.strip_prefix('r').unwrap_or(word))
}

/// Parses a value of `--tmpfs`: a path, and options of mount(8) after a colon.
pub fn tmpfs(text: &str) -> Result<Mount, String> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let mut mount = Mount::tmpfs(absolute(target)?, Tmpfs::default());
    let mut tmpfs = Tmpfs::default();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || {
            value
                .parse()
                .map_err(|_| format!("`{option}`: expected a number"))
        };
        match (name, value) {
            ("ro", "") => mount.read_only = true,
            ("rw", "") => mount.read_only = false,
            ("exec" | "noexec", "") => tmpfs.exec = name == "exec",
            ("suid" | "nosuid", "") => tmpfs.suid = name == "suid",
            ("dev" | "nodev", "") => tmpfs.dev = name == "dev",
            ("size", _) => tmpfs.size_bytes = Some(size(value)?),
            ("mode", _) => tmpfs.mode = Some(mode(value)?),
            ("uid", _) => tmpfs.uid = number()?,
            ("gid", _) => tmpfs.gid = number()?,
            ("nr_inodes", _) => tmpfs.inodes = Some(number()?.into()),
            _ => {
                return Err(format!(
                    "`{option}`: expected ro, rw, [no]exec, [no]suid, [no]dev, size=, mode=, \
                     uid=, gid= or nr_inodes="
                ));
            }
        }
    }
    mount.source = micabox::MountSource::Tmpfs(tmpfs);
    Ok(mount)
}

/// Parses a value of `--mount`: `key=value` pairs with commas between.
pub fn mount(text: &str) -> Result<MountFlag, String> {
    let fields = fields(text)?;
    let (mut kind, mut target, mut source) = ("volume".to_owned(), None, None);
    let (mut read_only, mut tmpfs) = (false, Tmpfs::default());
    let (mut is_new_empty, mut subpath) = (false, None);
    let (mut is_cached, mut is_alone) = (false, false);
    // A key of each type that was used, for those that are of one type only.
    let mut of_types = Vec::new();
    for field in &fields {
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
            return Err(format!("`{field}`: expected a key=value pair"));
        }
        match key.as_str() {
            "readonly" | "ro" => read_only = flag()?,
            "type" => kind = value.to_ascii_lowercase(),
            "target" | "dst" | "destination" => target = Some(value),
            "source" | "src" => source = Some(value),
            "consistency" => match value {
                "cached" => is_cached = true,
                "consistent" | "delegated" | "default" => {}
                _ => {
                    return Err(format!(
                        "`{field}`: expected cached, consistent, delegated or default"
                    ));
                }
            },
            "tmpfs-size" => tmpfs.size_bytes = Some(size(value)?),
            "tmpfs-mode" => tmpfs.mode = Some(mode(value)?),
            "volume-nocopy" => is_new_empty = flag()?,
            "volume-driver" if value == "local" => {}
            "volume-driver" => return Err(format!("`{field}`: there is only the driver `local`")),
            "image-subpath" => subpath = Some(value),
            "bind-propagation" if is_propagation(value) => {}
            "bind-propagation" => {
                return Err(format!(
                    "`{field}`: expected private, shared, slave, rprivate, rshared or rslave"
                ));
            }
            "bind-nonrecursive" => is_alone = flag()?,
            "bind-recursive" => is_alone = !is_recursive(value)?,
            other => return Err(format!("`{field}`: unexpected key `{other}`")),
        }
        of_types.extend(
            key.split_once('-')
                .map(|(kind, _)| (kind.to_owned(), key.clone())),
        );
    }
    let kind = kind.as_str();
    if !["bind", "volume", "tmpfs", "image"].contains(&kind) {
        return Err(format!(
            "`type={kind}`: expected bind, volume, tmpfs or image"
        ));
    }
    if let Some((_, key)) = of_types.iter().find(|(of, _)| of != kind) {
        return Err(format!("a mount of type {kind} has no `{key}`"));
    }
    let target = target
        .filter(|target| !target.is_empty())
        .ok_or("target is required")?;
    let target = absolute(target)?;
    let source = source.filter(|source| !source.is_empty());
    let mut mount = match (kind, source) {
        ("tmpfs", None) => Mount::tmpfs(target, tmpfs),
        ("tmpfs", Some(_)) => return Err("a mount of type tmpfs has no source".into()),
        ("image", Some(reference)) => {
            return Ok(MountFlag::Image {
                target,
                reference: reference.to_owned(),
                subpath: subpath.unwrap_or_default().to_owned(),
            });
        }
        ("image", None) => return Err("a mount of type image needs a name: source=NAME".into()),
        ("bind", Some(source)) => Mount::bind(on_host(source)?, target),
        ("bind", None) => return Err("source is required".into()),
        (_, Some(name)) => Mount::volume(name, target),
        (_, None) => anonymous(target)?,
    };
    if is_new_empty {
        no_copy(&mut mount);
    }
    if is_cached {
        mount = mount.cached();
    }
    if is_alone {
        mount = mount.alone();
    }
    Ok(MountFlag::Mount(Mount { read_only, ..mount }))
}

/// Parses a value of `bind-recursive`: whether what is mounted below a folder is there.
fn is_recursive(value: &str) -> Result<bool, String> {
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
        )),
    }
}

/// Splits a line of CSV, in which a field with a comma is in double quotes.
fn fields(text: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let field = match rest.strip_prefix('"') {
            None => {
                let (field, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                rest = after;
                field.to_owned()
            }
            Some(quoted) => {
                let (field, after) = unquoted(quoted).ok_or("a quote is not closed")?;
                rest = after;
                field
            }
        };
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(fields),
            None => return Err("expected a comma after the quotes".into()),
        }
    }
}

/// Returns the field that ends at the next single quote, and what comes after.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Some((field, after)),
        }
    }
}

fn absolute(target: &str) -> Result<String, String> {
    if target.starts_with('/') {
        Ok(target.to_owned())
    } else {
        Err(format!("`{target}`: the path is not absolute"))
    }
}

fn size(text: &str) -> Result<u64, String> {
    word(text).map(|Size(bytes)| bytes)
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("`{text}`: expected a mode in octal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mount: &Mount) -> &Tmpfs {
        match &mount.source {
            MountSource::Tmpfs(tmpfs) => tmpfs,
            _ => panic!("{mount:?}"),
        }
    }

    #[test]
    fn tmpfs_has_dockers_defaults_and_options() {
        let plain = tmpfs("/run").unwrap();
        assert_eq!(plain, Mount::tmpfs("/run", Tmpfs::default()));
        let mount =
            tmpfs("/a:ro,size=64k,mode=1770,uid=5,gid=6,exec,suid,dev,nr_inodes=9").unwrap();
        assert!(mount.read_only);
        let wanted = Tmpfs {
            size_bytes: Some(64 << 10),
            inodes: Some(9),
            mode: Some(0o1770),
            uid: 5,
            gid: 6,
            exec: true,
            suid: true,
            dev: true,
        };
        assert_eq!(options(&mount), &wanted);
        assert!(!tmpfs("/a:ro,exec,rw,noexec").unwrap().read_only);
        for bad in [
            "",
            "run",
            "/a:x",
            "/a:size=",
            "/a:size=0",
            "/a:mode=8",
            "/a:mode=10000",
        ] {
            tmpfs(bad).unwrap_err();
        }
    }

    #[test]
    fn a_mount_is_a_line_of_pairs() {
        let one = |text: &str| match mount(text) {
            Ok(MountFlag::Mount(mount)) => Ok(mount),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error),
        };
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
            ("type=bind,src=~/a,dst=/b", "outside quotes"),
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
    fn a_volume_has_a_name_a_path_and_options() {
        let one = |text: &str| match volume(text) {
            Ok(MountFlag::Mount(mount)) => Ok(mount),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error),
        };
        assert_eq!(one("data:/a").unwrap(), Mount::volume("data", "/a"));
        let read_only = Mount::volume("data", "/a").read_only();
        assert_eq!(one("data:/a:ro").unwrap(), read_only);
        let MountFlag::Mount(long) = mount("src=data,dst=/a,readonly").unwrap() else {
            panic!("unavailable");
        };
        assert_eq!(long, read_only);
        let no_copy = one("data:/a:rw,nocopy").unwrap();
        let MountFlag::Mount(long) = mount("type=volume,src=data,dst=/a,volume-nocopy=1").unwrap()
        else {
            panic!("unavailable");
        };
        assert_eq!(long, no_copy);
        for (text, why) in [
            ("data", "not absolute"),
            ("data:a", "not absolute"),
            (":/a", "expected [HOST|NAME:]PATH"),
            ("data:/a:ro:x", "expected [HOST|NAME:]PATH"),
            ("data:/a:rslave", "`rslave`: expected ro"),
            ("./data:/a:nocopy", "`nocopy`: expected ro"),
            ("./data:/a:ro,rw", "exclude"),
            ("~/x:/a", "outside quotes"),
            ("~:/a", "outside quotes"),
            ("data:/a:blue", "`blue`: expected ro"),
            ("./data:/a:blue", "`blue`: expected ro"),
            ("./data:a", "not absolute"),
        ] {
            let error = one(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_volume_without_a_name_is_the_sandboxs_own() {
        for text in ["type=volume,dst=/a", "dst=/a", "type=volume,src=,dst=/a"] {
            for flag in [volume("/a"), mount(text)] {
                let MountFlag::Mount(mount) = flag.unwrap() else {
                    panic!("{text}");
                };
                let MountSource::Volume(source) = mount.source else {
                    panic!("{text}");
                };
                assert!(source.anonymous && source.name.len() == 32, "{source:?}");
            }
        }
    }

    #[test]
    fn a_folder_of_the_host_has_a_slash() {
        let here = std::env::current_dir().unwrap();
        let inside = |path: &str| here.join(path).into_os_string().into_string().unwrap();
        for (text, source, read_only) in [
            ("/a:/b", "/a".to_owned(), false),
            ("/a:/b:ro", "/a".to_owned(), true),
            ("./a:/b:rw,z", inside("a"), false),
            ("./~/a:/b", inside("~/a"), false),
            ("/a:/b:ro,rslave", "/a".to_owned(), true),
            ("/a:/b:shared,delegated", "/a".to_owned(), false),
            (
                "/a:/b:rprivate,slave,rshared,private,Z",
                "/a".to_owned(),
                false,
            ),
            ("a/c:/b", inside("a/c"), false),
        ] {
            let MountFlag::Mount(mount) = volume(text).unwrap() else {
                panic!("{text}");
            };
            let wanted = Mount {
                read_only,
                ..Mount::bind(source, "/b")
            };
            assert_eq!(mount, wanted);
        }
        let MountFlag::Mount(long) = mount("Type=Bind,src=a,dst=/b,ro").unwrap() else {
            panic!("unavailable");
        };
        assert_eq!(long, Mount::bind(inside("a"), "/b").read_only());
        for text in ["./a:/b:cached", "./a:/b:rw,cached"] {
            let MountFlag::Mount(mount) = volume(text).unwrap() else {
                panic!("{text}");
            };
            assert_eq!(mount, Mount::bind(inside("a"), "/b").cached());
        }
        for (recursive, is_alone) in [
            ("bind-recursive=disabled", true),
            ("bind-nonrecursive", true),
            ("bind-recursive=enabled", false),
            ("bind-nonrecursive=false", false),
            ("bind-recursive=readonly,bind-propagation=rslave", false),
        ] {
            let text = format!("type=bind,src=/a,dst=/b,{recursive}");
            let MountFlag::Mount(mount) = super::mount(&text).unwrap() else {
                panic!("{text}");
            };
            assert_eq!(mount == Mount::bind("/a", "/b").alone(), is_alone, "{text}");
        }
        for (consistency, is_cached) in [("cached", true), ("consistent", false)] {
            let text = format!("type=bind,src=/a,dst=/b,consistency={consistency}");
            let MountFlag::Mount(mount) = super::mount(&text).unwrap() else {
                panic!("{text}");
            };
            assert_eq!(mount == Mount::bind("/a", "/b").cached(), is_cached);
        }
    }
}
