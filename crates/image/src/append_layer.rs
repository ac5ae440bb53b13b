//! Makes a new image on top of another one: its layers and one more, from an archive.

use std::io::{self, Read, Seek, Write};

use micabox_ground::piece;
use micabox_oci::Config;
use serde_json::Value;

use crate::convert::{self, Expect, Place, convert_layer_in};
use crate::export::{Compression, fresh};
use crate::manifest::{Document, ManifestError, layers_of};
use crate::store::{self, Context, Image};
use crate::{Descriptor, Digest, Limits, Reference, Store, printable};
use micabox_oci::HashingWriter;
use micabox_oci::json::{self, Json};

const BUFFER: usize = 256 << 10;

/// Differences of the new image's config from its base's. Fields that are `None` stay unchanged.
#[derive(Debug, Clone, Default)]
pub struct ImageEdit {
    /// When the image was made, in RFC 3339.
    pub created: Option<String>,
    /// Author of the image.
    pub author: Option<String>,
    /// Command that made the layer: `created_by` in its history.
    pub created_by: Option<String>,
    /// Comment on the layer: `comment` in its history.
    pub comment: Option<String>,
    /// Runtime configuration: command, environment, user.
    pub config: Option<Config>,
    /// What Docker has there beside OCI.
    pub docker: DockerConfig,
}

/// Fields of an image's runtime configuration that only Docker has. Those that are empty stay
/// unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DockerConfig {
    /// How to check a container: `Test`, `Interval` and others.
    pub healthcheck: Option<Value>,
    /// Instructions to add to those for builds upon the image.
    pub on_build: Vec<String>,
    /// The program that runs commands which are lines.
    pub shell: Option<Vec<String>>,
}

/// Why no new image was made. A complete layer stays in the store until it is pruned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendLayerError {
    /// The source of the archive failed.
    #[error("reading the new layer fails: {0}")]
    Read(#[source] io::Error),
    /// The archive is not a valid layer.
    #[error("the new {0}")]
    Layer(#[source] Box<convert::Error>),
    /// The base's documents can't be read.
    #[error("cannot build on {image}: {source}")]
    Base {
        /// Manifest digest of the base.
        image: crate::Digest,
        /// What is wrong with it.
        source: Box<ManifestError>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Makes an image of `base`'s layers with one more on top, and gives it the names in `references`.
///
/// `archive` is the layer in OCI's format, uncompressed, with whiteouts for deleted files. It is
/// first copied to the disk, because a layer is made under its digest. The new manifest names the
/// base's blobs as the base's manifest does, and the new layer as uncompressed: a push or a save
/// packs the layers that need it.
///
/// # Errors
///
/// [`AppendLayerError`]; the store has no new image.
///
/// ```no_run
/// # use micabox_image::{ImageEdit, Limits, Store, convert::Place, append_layer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::open(&Store::default_root()?)?;
/// let base = store.image("debian:12")?;
/// let archive = std::fs::File::open("changes.tar")?;
/// let changes = ImageEdit {
///     created_by: Some("apt-get install nginx".to_owned()),
///     ..ImageEdit::default()
/// };
/// let names = ["mine:latest".parse()?];
/// append_layer(&store, &base, archive, &changes, &names, &Limits::default(), Place::Jail)?;
/// # Ok(())
/// # }
/// ```
pub fn append_layer(
    store: &Store,
    base: &Image,
    archive: impl Read,
    changes: &ImageEdit,
    references: &[Reference],
    limits: &Limits,
    place: Place,
) -> Result<Image, AppendLayerError> {
    // From here on `prune` removes nothing that we find and make.
    let _shared = store.shared()?;
    let image = base.manifest_digest;
    let unusable = |source| AppendLayerError::Base {
        image,
        source: Box::new(source),
    };
    let manifest = store.manifest(&image)?;
    let Document::Manifest(manifest) = Document::parse(&manifest, None).map_err(unusable)? else {
        return Err(unusable(ManifestError::NoImage));
    };
    let sources = layers_of(&manifest, &base.config, limits).map_err(unusable)?;
    if sources.iter().any(|source| source.archive.is_some()) {
        return Err(unusable(ManifestError::NoArchives));
    }
    let (mut blobs, mut diff_ids): (Vec<_>, Vec<_>) = sources
        .into_iter()
        .map(|source| (source.blob, source.diff_id))
        .unzip();

    let new = add_layer(store, archive, limits, place)?;
    let base_config = store.config(&image)?;
    diff_ids.push(new.digest);
    let config = with_layer(&base_config, &diff_ids, changes).map_err(unusable)?;
    blobs.push(new);
    let manifest = fresh(&config, &blobs).map_err(unusable)?;
    Ok(store.publish_image(&manifest, &config, references)?)
}

/// Converts the archive. Its blob is the archive itself.
fn add_layer(
    store: &Store,
    archive: impl Read,
    limits: &Limits,
    place: Place,
) -> Result<Descriptor, AppendLayerError> {
    let scratch = store.scratch()?;
    let path = scratch.path("archive");
    let mut out = HashingWriter::new(scratch.create("archive")?);
    // One byte more than allowed, to tell a layer that is too large from one that just fits.
    let mut archive = archive.take(limits.layer_size.saturating_add(1));
    let mut buffer = vec![0; BUFFER];
    while let Some(bytes) = piece(&mut archive, &mut buffer).map_err(AppendLayerError::Read)? {
        out.write_all(bytes).context("write", &path)?;
    }
    let (mut file, diff_id, size) = out.finish();
    file.rewind().context("read", &path)?;
    let blob = Descriptor {
        media_type: Compression::None.media_type().to_owned(),
        digest: diff_id,
        size,
    };
    let expect = Expect {
        blob: Some(blob.clone()),
        diff_id,
        archive: None,
        checksum: None,
    };
    convert_layer_in(place, store, file, &expect, limits)
        .map_err(|error| AppendLayerError::Layer(Box::new(error)))?;
    Ok(blob)
}

/// Fields of an image's `config` that `Config` has; Docker has more.
const CONFIG_FIELDS: [&str; 9] = [
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Labels",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
];

/// Returns the base's config with one more layer, the last of `diff_ids`. Unknown fields stay.
fn with_layer(
    base: &[u8],
    diff_ids: &[Digest],
    changes: &ImageEdit,
) -> Result<Vec<u8>, ManifestError> {
    let malformed = |error: json::Error| ManifestError::Malformed {
        document: "config",
        message: printable(&error.to_string()),
    };
    let text = |text: &String| Json::Text(text.clone());
    let texts = |texts: &[String]| Json::List(texts.iter().map(text).collect());
    let mut config: Json = json::from_slice(base).map_err(malformed)?;
    let mut rootfs = config.field("rootfs");
    rootfs.set_field("type", Json::Text("layers".to_owned()));
    rootfs.set_field("diff_ids", Json::of(&diff_ids).map_err(malformed)?);
    config.set_field("rootfs", rootfs);

    // A history is useful only if it covers every layer.
    let mut history = match config.field("history") {
        Json::List(history) => history,
        _ => Vec::new(),
    };
    let told = history
        .iter()
        .filter(|step| step.field("empty_layer") != Json::Bool(true));
    if told.count() + 1 == diff_ids.len() {
        let mut step = Json::Object(Vec::new());
        for (name, value) in [
            ("created", &changes.created),
            ("author", &changes.author),
            ("created_by", &changes.created_by),
            ("comment", &changes.comment),
        ] {
            if let Some(value) = value {
                step.set_field(name, text(value));
            }
        }
        history.push(step);
    }
    if !history.is_empty() {
        config.set_field("history", Json::List(history));
    }
    for (name, value) in [("created", &changes.created), ("author", &changes.author)] {
        if let Some(value) = value {
            config.set_field(name, text(value));
        }
    }
    let mut run = config.field("config");
    if let Some(changed) = &changes.config {
        for name in CONFIG_FIELDS {
            run.remove_field(name);
        }
        if let Json::Object(fields) = Json::of(changed).map_err(malformed)? {
            for (name, value) in fields {
                run.set_field(&name, value);
            }
        }
    }
    let docker = &changes.docker;
    if let Some(healthcheck) = &docker.healthcheck {
        run.set_field("Healthcheck", Json::of(healthcheck).map_err(malformed)?);
    }
    if !docker.on_build.is_empty() {
        let mut all = match run.field("OnBuild") {
            Json::List(all) => all,
            _ => Vec::new(),
        };
        all.extend(docker.on_build.iter().map(text));
        run.set_field("OnBuild", Json::List(all));
    }
    if let Some(shell) = &docker.shell {
        run.set_field("Shell", texts(shell));
    }
    if run != Json::Null {
        config.set_field("config", run);
    }
    serde_json::to_vec(&config).map_err(malformed)
}
