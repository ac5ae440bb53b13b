//! Performs the model's operations on the engine.

use micabox_ext4::{
    BlockDevice, Errno, Ext4, Fallocate, Ino, Owner, ROOT, SetAttributes, SetXattr,
};

use super::{Op, Outcome, Path};

fn walk_to<D: BlockDevice>(filesystem: &mut Ext4<D>, path: &[String]) -> Result<Ino, Errno> {
    let mut at = ROOT;
    for name in path {
        at = filesystem
            .lookup(at, name.as_bytes())
            .map_err(|error| error.errno())?;
    }
    Ok(at)
}

/// Performs an operation on a filesystem.
pub fn apply<D: BlockDevice>(filesystem: &mut Ext4<D>, op: &Op) -> Outcome {
    let owner = Owner {
        permissions: 0o644,
        uid: 1,
        gid: 2,
    };
    let directory = Owner {
        permissions: 0o755,
        ..owner
    };
    let fs = filesystem;
    fn split(path: &Path) -> (&[String], &[u8]) {
        let (name, parents) = path.split_last().unwrap();
        (parents, name.as_bytes())
    }
    let result = match op {
        Op::Create(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.create(parent, name, owner).map(|_| ())
        }
        Op::Mkdir(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.mkdir(parent, name, directory).map(|_| ())
        }
        Op::Symlink(path, target) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.symlink(parent, name, target.as_bytes(), owner)
                .map(|_| ())
        }
        Op::Write {
            path,
            offset,
            length,
            byte,
        } => {
            let ino = walk_to(fs, path)?;
            fs.write(ino, *offset, &vec![*byte; *length])
                .map(|count| assert_eq!(count, *length))
        }
        Op::Truncate(path, size) => {
            let ino = walk_to(fs, path)?;
            fs.truncate(ino, *size)
        }
        Op::Allocate(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(
                ino,
                Fallocate::Allocate { keep_size: false },
                *offset,
                *length,
            )
        }
        Op::Punch(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(ino, Fallocate::PunchHole, *offset, *length)
        }
        Op::Zero(path, offset, length) => {
            let ino = walk_to(fs, path)?;
            fs.fallocate(
                ino,
                Fallocate::ZeroRange { keep_size: true },
                *offset,
                *length,
            )
        }
        Op::Link(path, new) => {
            let ino = walk_to(fs, path)?;
            let (parents, name) = split(new);
            let parent = walk_to(fs, parents)?;
            fs.link(ino, parent, name)
        }
        Op::Unlink(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.unlink(parent, name)
        }
        Op::Rmdir(path) => {
            let (parents, name) = split(path);
            let parent = walk_to(fs, parents)?;
            fs.rmdir(parent, name)
        }
        Op::Rename(old, new, how) => {
            let (old_parents, old_name) = split(old);
            let (new_parents, new_name) = split(new);
            let old_parent = walk_to(fs, old_parents)?;
            fs.lookup(old_parent, old_name)
                .map_err(|error| error.errno())?;
            let new_parent = walk_to(fs, new_parents)?;
            fs.rename(old_parent, old_name, new_parent, new_name, *how)
        }
        Op::Chmod(path, permissions) => {
            let ino = walk_to(fs, path)?;
            let permissions = Some(*permissions);
            fs.set_attributes(
                ino,
                &SetAttributes {
                    permissions,
                    ..SetAttributes::default()
                },
            )
        }
        Op::SetXattr(path, name, value) => {
            let ino = walk_to(fs, path)?;
            fs.set_xattr(ino, name.as_bytes(), value, SetXattr::Any)
        }
        Op::RemoveXattr(path, name) => {
            let ino = walk_to(fs, path)?;
            fs.remove_xattr(ino, name.as_bytes())
        }
        Op::Sync => fs.sync(),
    };
    result.map_err(|error| error.errno())
}
