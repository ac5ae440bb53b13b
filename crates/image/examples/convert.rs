//! Converts one layer blob into a store and prints the cost: `convert [--here] STORE BLOB DIFF-ID
//! [BLOB-DIGEST]`, in the jail or in this process. The benchmarks run this.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use micabox_image::convert::{Expect, Place, convert_layer_in};
use micabox_image::{Compression, Descriptor, Limits, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    micabox_jail::run_if_worker(&[micabox_image::WORKER]);
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut place = Place::Jail;
    if arguments.first().is_some_and(|first| first == "--here") {
        arguments.remove(0);
        place = Place::Here;
    }
    let [store, blob, diff_id, blob_digest @ ..] = &arguments[..] else {
        return Err("usage: convert [--here] STORE BLOB DIFF-ID [BLOB-DIGEST]".into());
    };
    let store = Store::open(Path::new(store))?;
    let source = File::open(blob)?;
    let blob = match blob_digest.first() {
        Some(digest) => Some(Descriptor {
            media_type: Compression::None.media_type().to_owned(),
            digest: digest.parse()?,
            size: source.metadata()?.len(),
        }),
        None => None,
    };
    let expect = Expect {
        blob,
        diff_id: diff_id.parse()?,
        archive: None,
        checksum: None,
    };
    let started = Instant::now();
    let layer = convert_layer_in(place, &store, source, &expect, &Limits::default())?;
    eprintln!("{:.3} s", started.elapsed().as_secs_f64());
    println!("{}", serde_json::to_string_pretty(&layer.record)?);
    Ok(())
}
