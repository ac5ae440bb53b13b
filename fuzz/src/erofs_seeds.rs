//! Small images as seeds.

use std::io::Cursor;

use micabox_erofs::{
    Kind, Metadata, Options, Segment, Timestamp, Tree, Writer, Xattr, format, overlay,
};

/// A lower layer and an upper one.
pub fn images() -> Vec<(&'static str, Vec<u8>)> {
    let sound = |upper| image(upper).expect("a sound image");
    vec![("lower", sound(false)), ("upper", sound(true))]
}

/// Both in a stack.
pub fn stacks() -> Vec<(&'static str, Vec<u8>)> {
    let [(_, lower), (_, upper)] = &images()[..] else {
        return Vec::new();
    };
    let parting = (lower.len() / 64) as u16;
    let stack = [&lower[..], upper, &parting.to_le_bytes()].concat();
    vec![("stack", stack)]
}

fn metadata(mode: u16, seconds: i64) -> Metadata {
    Metadata {
        mode,
        uid: 1,
        gid: 70_000,
        mtime: Timestamp { seconds, nanos: 7 },
        xattrs: vec![Xattr::new(*b"user.shared", *b"by all")],
    }
}

/// An image with one instance of everything; for the upper layer with every marker.
fn image(upper: bool) -> micabox_erofs::Result<Vec<u8>> {
    let options = Options {
        uuid: [u8::from(upper); 16],
        root: metadata(0o755, 1),
    };
    let mut writer = Writer::new(Cursor::new(Vec::new()), options)?;
    let body = writer.body(9, &mut &b"some data"[..])?;
    let hole = Segment {
        offset: 8192,
        length: 4,
    };
    let sparse = writer.sparse_body(20_000, &[hole], &mut &b"data"[..])?;
    let tree = writer.tree();
    let root = tree.root();
    let directory = tree.add(metadata(0o700, 2), Kind::directory());
    tree.link(root, b"directory", directory)?;
    let file = tree.add(
        metadata(0o644, 3),
        Kind::File {
            size: 9,
            data: body,
        },
    );
    tree.link(directory, b"file", file)?;
    tree.link(root, b"+hard link", file)?;
    let data = Kind::File {
        size: 20_000,
        data: sparse,
    };
    let kinds: [(&[u8], Kind); 5] = [
        (b"sparse", data),
        (b"symlink", Kind::Symlink((*b"directory/file").into())),
        (
            b"null",
            Kind::CharDevice(format::encode_device(1, 3).unwrap_or(0)),
        ),
        (b"fifo", Kind::Fifo),
        (b"socket", Kind::Socket),
    ];
    for (name, kind) in kinds {
        let inode = tree.add(metadata(0o600, 4), kind);
        tree.link(directory, name, inode)?;
    }
    if upper {
        markers(tree)?;
    } else {
        let large = tree.add(metadata(0o755, 5), Kind::directory());
        tree.link(root, b"large", large)?;
        for i in 0..60 {
            let name = format!("{i}{}", "-".repeat(70));
            let inode = tree.add(metadata(0o644, 6), Kind::EMPTY_FILE);
            tree.link(large, name.as_bytes(), inode)?;
        }
    }
    Ok(writer.finish()?.0.into_inner())
}

fn markers(tree: &mut Tree) -> micabox_erofs::Result<()> {
    let root = tree.root();
    let implied = tree.add(overlay::implied_directory(), Kind::directory());
    tree.link(root, b"large", implied)?;
    let (meta, kind) = overlay::link_to_lower(metadata(0o644, 8), b"/directory/sparse");
    let link = tree.add(meta, kind);
    tree.link(implied, b"link to lower", link)?;
    overlay::add_whiteout(tree, root, b"+hard link")?;
    if let Some(directory) = tree.lookup(root, b"directory") {
        overlay::set_opaque(tree, directory);
    }
    Ok(())
}
