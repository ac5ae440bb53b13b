//! Checks images with erofs-utils.

use std::path::Path;
use std::process::Command;

/// Panics unless `fsck.erofs` accepts the image and can read every file's data in it. `devices` are
/// the devices of its table.
#[track_caller]
pub fn fsck(image: &Path, devices: &[&Path]) {
    let mut command = Command::new("fsck.erofs");
    command.arg("--extract");
    run(command, image, devices);
}

/// Does the same as [`fsck`] without reading data.
#[track_caller]
pub fn fsck_metadata(image: &Path) {
    run(Command::new("fsck.erofs"), image, &[]);
}

#[track_caller]
fn run(mut command: Command, image: &Path, devices: &[&Path]) {
    for device in devices {
        command.arg(format!("--device={}", device.display()));
    }
    command.arg(image);
    let output = command
        .output()
        .expect("fsck.erofs runs (Debian package erofs-utils)");
    let messages = [output.stdout, output.stderr].concat();
    let messages = String::from_utf8_lossy(&messages);
    // fsck.erofs prints "err: " for some problems but succeeds.
    assert!(
        output.status.success() && !messages.contains("<E>"),
        "{command:?}: {}\n{messages}",
        output.status
    );
}

/// Writes an image to a file on disk and checks it.
#[track_caller]
pub fn fsck_bytes(bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    fsck(file.path(), &[]);
}
