//! Options on this machine: paths that are relative to the current directory, and volumes without names.

use micabox::words::MountWord;
use micabox::{Mount, MountSource, Upper, VolumeSource};
use micabox_spec::options::{MountOption, SandboxOptions, UpperOption, VolumeOption};

use micabox_program::failure::Failure;

/// Has paths of this machine be absolute, as `mica start` may be called from elsewhere, and gives volumes of the sandbox's
/// own a name. Where that is done already, nothing changes.
pub fn here(mut options: SandboxOptions) -> Result<SandboxOptions, Failure> {
    let files = &mut options.files;
    for VolumeOption(mount) in &mut files.volume {
        settle(mount).map_err(|why| Failure::new(format!("--volume {why}")))?;
    }
    for MountOption(word) in &mut files.mount {
        if let MountWord::Mount(mount) = word {
            settle(mount).map_err(|why| Failure::new(format!("--mount {why}")))?;
        }
    }
    if let Some(UpperOption(Upper::Folder { path })) = &mut files.upper {
        *path = on_host(path).map_err(|why| Failure::new(format!("--upper {why}")))?;
    }
    if let Some(path) = &mut options.network.vsock {
        *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
    }
    Ok(options)
}

/// Has a path of this machine be absolute, and gives a volume of the sandbox's own a name.
fn settle(mount: &mut Mount) -> Result<(), String> {
    match &mut mount.source {
        MountSource::Bind(folder) => folder.source = on_host(&folder.source)?,
        MountSource::Volume(own) if own.anonymous && own.name.is_empty() => {
            let named = micabox::anonymous_volume(mount.target.clone());
            let named = named.map_err(|error| error.to_string())?;
            if let MountSource::Volume(VolumeSource { name, .. }) = named.source {
                own.name = name;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the absolute path of a folder of the host.
fn on_host(source: &str) -> Result<String, String> {
    let path = std::path::absolute(source).map_err(|error| format!("`{source}`: {error}"))?;
    let path = path.into_os_string().into_string();
    path.map_err(|_| format!("`{source}`: the path is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(text: &str) -> Result<Mount, String> {
        let VolumeOption(mut mount) = text.parse::<VolumeOption>().map_err(|e| e.to_string())?;
        settle(&mut mount)?;
        Ok(mount)
    }

    fn mount(text: &str) -> Result<Mount, String> {
        match text.parse::<MountOption>().map_err(|e| e.to_string())? {
            MountOption(MountWord::Mount(mut mount)) => {
                settle(&mut mount)?;
                Ok(mount)
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn a_volume_of_the_sandboxs_own_gets_a_name() {
        for mount in [volume("/a"), mount("dst=/a,volume-nocopy")] {
            let mut mount = mount.unwrap();
            let MountSource::Volume(source) = mount.source.clone() else {
                panic!("a volume");
            };
            assert!(source.anonymous && source.name.len() == 32, "{source:?}");
            // And keeps it.
            settle(&mut mount).unwrap();
            assert_eq!(mount.source, MountSource::Volume(source));
        }
    }

    #[test]
    fn a_folders_path_is_below_the_current_directory() {
        let here = std::env::current_dir().unwrap();
        let inside = |path: &str| here.join(path).into_os_string().into_string().unwrap();
        for (text, source) in [
            ("/a:/b", "/a".to_owned()),
            ("./a:/b", inside("a")),
            ("./~/a:/b", inside("~/a")),
            ("a/c:/b", inside("a/c")),
        ] {
            assert_eq!(volume(text), Ok(Mount::bind(source, "/b")));
        }
        assert_eq!(
            mount("type=bind,src=a,dst=/b"),
            Ok(Mount::bind(inside("a"), "/b"))
        );
        for error in [
            volume("~/x:/a"),
            volume("~:/a"),
            mount("type=bind,src=~/a,dst=/b"),
        ] {
            assert!(error.unwrap_err().contains("outside quotes"));
        }
    }

    #[test]
    fn a_folder_for_changes_has_an_absolute_path() {
        let folder = |text: &str| {
            let mut options = SandboxOptions::default();
            options.files.upper = Some(text.parse().unwrap());
            let settled = super::here(options).unwrap();
            settled.files.upper().cloned()
        };
        let at = |path: &str| {
            let path = path.to_owned();
            Some(Upper::Folder { path })
        };
        assert_eq!(folder("folder:/a/b:c"), at("/a/b:c"));
        let here = std::env::current_dir().unwrap();
        let below = here.join("a").into_os_string().into_string().unwrap();
        assert_eq!(folder("folder:a"), at(&below));
    }
}
