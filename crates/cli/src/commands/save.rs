//! `mica save`

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use micabox_image::ArchiveFormat;
use micabox_image::{Compression, SaveOptions};
use micabox_overlay::host::WholeFile;

use super::archives;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::{bars, output, settings};

/// Save images to an archive
///
/// The archive is for `mica load`, `docker load`, Podman and skopeo. The same images give
/// the same archive, byte for byte. Of an image that was pulled with --lazy the archives are fetched first.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to write [default: stdout, unless that is a terminal]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// oci-archive, or docker-archive: the format of Docker before version 25
    #[arg(long, value_name = "FORMAT", default_value_t)]
    format: ArchiveFormat,

    /// Compression of layers: gzip, zstd or none [default: gzip; docker-archive: none]
    #[arg(long, value_name = "HOW")]
    compression: Option<Compression>,

    /// Names or digests
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

/// Saves images.
pub fn execute(args: &Args) -> Outcome {
    match &args.output {
        None if output::stdout_is_terminal() => {
            Err(Failure::new("refusing to write an archive to a terminal")
                .hint("write it to a file with `-o FILE`, or redirect stdout"))
        }
        None => {
            // Bypasses stdout's line buffer.
            let stdout = output::raw::stdout_fd().try_clone_to_owned();
            let mut out = File::from(stdout.map_err(|error| at(Path::new("stdout"), &error))?);
            save(args, &mut out)
        }
        Some(path) => {
            let whole = WholeFile::create(path).map_err(|error| at(path, &error))?;
            let mut out = whole.file();
            let code = save(args, &mut out)?;
            whole.publish().map_err(|error| at(path, &error))?;
            Ok(code)
        }
    }
}

fn save(args: &Args, out: &mut dyn Write) -> Outcome {
    let store = settings::store()?;
    for image in &args.images {
        archives::bring(&store, image, false)?;
    }
    let options = SaveOptions {
        format: args.format,
        compression: args.compression,
        settings: settings::for_images()?,
    };
    let progress = bars::watch_saving(&args.images.join(", "));
    micabox_image::save(&store, &args.images, out, &options, &*progress)?;
    Ok(0)
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::of(error).context(&format!("writing `{}`", path.display()))
}
