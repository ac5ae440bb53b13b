//! Paths of all files in the store. The files refer to each other relative to the root, so a store
//! can be moved or mounted elsewhere.

use std::path::{Path, PathBuf};

use micabox_oci::Digest;

/// The paths of one store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub root: PathBuf,
}

/// The directories directly below the root.
pub(crate) const DIRECTORIES: [&str; 9] = [
    "layers",
    "packs",
    "blobs",
    "images",
    "refs",
    "locks",
    "sandboxes",
    "templates",
    "tmp",
];

/// The directory of trimmed views in an image's.
pub(crate) const VIEWS: &str = "trimmed";

/// The path from the directory of a trimmed view to the image's.
pub(crate) const IMAGE_FROM_VIEW: &str = "../..";

impl Layout {
    /// Returns the path of a layer's filesystem image. containerd 2.4 reads the same layout as one
    /// of its `layer_content_caches`.
    pub fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".erofs")
    }

    /// Returns the path of a layer's recipe.
    pub fn recipe(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".recipe")
    }

    /// Returns the path of the list of a packed layer's chunks.
    pub fn list(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".chunks")
    }

    /// Returns the path of the record of a layer of which only a part is here.
    pub fn lazy(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".lazy")
    }

    /// Returns the path of what is here of such a layer's blob.
    pub fn lazy_blob(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".blob")
    }

    /// Returns the path of the metadata of such a layer.
    pub fn lazy_metadata(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".metadata")
    }

    /// Returns the path of a pack of chunks.
    pub fn pack(&self, pack: &Digest) -> PathBuf {
        self.sharded("packs", pack, ".pack")
    }

    /// Returns the path of a layer's metadata.
    pub fn layer_record(&self, diff_id: &Digest) -> PathBuf {
        self.sharded("layers", diff_id, ".json")
    }

    /// Returns the path of the record of a blob's layer.
    pub fn blob(&self, blob: &Digest) -> PathBuf {
        self.sharded("blobs", blob, ".json")
    }

    /// Returns the path of a blob that is kept as it came.
    pub fn kept_blob(&self, blob: &Digest) -> PathBuf {
        self.sharded("blobs", blob, ".blob")
    }

    /// Returns the directory of an image.
    pub fn image(&self, manifest: &Digest) -> PathBuf {
        self.images().join(manifest.hex())
    }

    /// Returns the directory of an image's trimmed views, one directory each. Those that no sandbox uses
    /// may be removed.
    pub fn views(&self, manifest: &Digest) -> PathBuf {
        self.image(manifest).join(VIEWS)
    }

    /// Returns the directory of templates, one directory each. All of them may be removed.
    pub fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images/sha256")
    }

    pub fn layers(&self) -> PathBuf {
        self.root.join("layers/sha256")
    }

    pub fn packs(&self) -> PathBuf {
        self.root.join("packs/sha256")
    }

    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs/sha256")
    }

    pub fn refs(&self) -> PathBuf {
        self.root.join("refs")
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// Returns the directory of volumes, which `crates/disks` makes: packs may have chunks of theirs.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// Returns the lock that is held shared to keep the store's contents, and exclusively to
    /// remove some.
    pub fn store_lock(&self) -> PathBuf {
        self.locks().join("store")
    }

    /// Returns the lock that is held while layers are packed.
    pub fn pack_lock(&self) -> PathBuf {
        self.locks().join("pack")
    }

    /// Returns the lock that is held while a layer is made.
    pub fn layer_lock(&self, diff_id: &Digest) -> PathBuf {
        self.locks().join(format!("layer-{}", diff_id.hex()))
    }

    /// Returns the lock that is held while an image is made.
    pub fn image_lock(&self, manifest: &Digest) -> PathBuf {
        self.locks().join(format!("image-{}", manifest.hex()))
    }

    fn sharded(&self, kind: &str, digest: &Digest, suffix: &str) -> PathBuf {
        let hex = digest.hex();
        let mut path = self.root.join(kind);
        path.push("sha256");
        path.push(&hex[..2]);
        path.push(hex + suffix);
        path
    }
}

/// Returns the relative path from an image's directory to a layer, for files that must survive a
/// move of the store.
pub(crate) fn layer_from_image(diff_id: &Digest) -> PathBuf {
    let hex = diff_id.hex();
    Path::new("../../../layers/sha256")
        .join(&hex[..2])
        .join(hex + ".erofs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relative_path_leads_from_image_to_layer() {
        let layout = Layout {
            root: PathBuf::from("/s"),
        };
        let digest = Digest::of(b"");
        let image = layout.image(&digest);
        let mut resolved = image;
        for component in layer_from_image(&digest).components() {
            match component {
                std::path::Component::ParentDir => drop(resolved.pop()),
                other => resolved.push(other),
            }
        }
        assert_eq!(resolved, layout.layer(&digest));
    }
}
