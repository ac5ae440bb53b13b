//! Access control lists on files of the image, whose filesystem has no operation to set them:
//! kernel/patches.

use crate::support::{Home, image};

const SET: &str = "setfacl -m u:1000:r,g::-,g:50:rw,o::- /srv/run; setfacl -m u:1000:rx /srv; \
    setfacl -d -m u:7:rwx /srv/kept; echo x > /srv/kept/new; setfacl -b /etc/passwd; \
    mkfifo /srv/pipe; setfacl -m u:7:w /srv/pipe";

const LOOK: &str = "getfacl -cnp /srv /srv/run /srv/kept /srv/kept/new /etc/passwd /srv/pipe";

const EXPECTED: &str = "\
user::rwx\nuser:1000:r-x\ngroup::r-x\nmask::r-x\nother::r-x\n\n\
user::rw-\nuser:1000:r--\ngroup::---\ngroup:50:rw-\nmask::rw-\nother::---\n\n\
user::rwx\ngroup::--x\nother::--x\n\
default:user::rwx\ndefault:user:7:rwx\ndefault:group::--x\ndefault:mask::rwx\ndefault:other::--x\n\n\
user::rw-\nuser:7:rwx\t#effective:rw-\ngroup::--x\t#effective:---\nmask::rw-\nother::---\n\n\
user::rw-\ngroup::r--\nother::r--\n\n\
user::rw-\nuser:7:-w-\ngroup::r--\nmask::rw-\nother::r--\n\n";

#[test]
#[ignore = "needs a built guest"]
fn an_acl_can_be_set_on_a_file_of_the_image_and_is_committed() {
    let home = Home::empty();
    let mut layers = image::layers();
    layers.push(image::programs(&["/usr/bin/setfacl", "/usr/bin/getfacl"]));
    let config = serde_json::json!({"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["sh"]});
    home.load(&layers, &config);
    let script = format!("set -e; {SET}; {LOOK}");
    let directory = tempfile::tempdir().unwrap();
    let folder = format!("folder:{}", directory.path().display());
    // In a folder of the host, a FIFO has no list.
    let of_pipe = "; mkfifo /srv/pipe; setfacl -m u:7:w /srv/pipe";
    let run = home.output(&[
        "run",
        "--name",
        "folder",
        "--upper",
        &folder,
        "box",
        "sh",
        "-c",
        &script.replace(of_pipe, "").replace(" /srv/pipe", ""),
    ]);
    let expected = EXPECTED.rsplit_once("user::rw-\nuser:7:-w-").unwrap().0;
    assert_eq!(run.ok(), expected);
    home.output(&["commit", "folder", "ours"]).ok();
    let look = LOOK.replace(" /srv/pipe", "");
    let look = home.output(&["run", "--rm", "ours", "sh", "-c", &look]);
    assert_eq!(look.ok(), expected);
    home.output(&["rm", "folder"]).ok();
    for (root, upper) in [("stacked", "tmpfs"), ("merged", "disk:64m")] {
        let flags = ["run", "--name", root, "--root", root, "--upper", upper];
        let run = home.output(&[&flags[..], &["box", "sh", "-c", &script]].concat());
        assert_eq!(run.ok(), EXPECTED, "{root}, {upper}");
    }
    home.output(&["commit", "merged", "mine"]).ok();
    let look = home.output(&["run", "--rm", "mine", "sh", "-c", LOOK]);
    assert_eq!(look.ok(), EXPECTED);
    // The list is enforced, too: mode 660 alone would keep this user out.
    let read = home.output(&[
        "run", "--rm", "-u", "app", "mine", "head", "-c4", "/srv/run",
    ]);
    assert_eq!(read.ok(), "not ");
    home.output(&["rm", "stacked", "merged"]).ok();
}
