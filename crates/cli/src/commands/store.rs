//! `mica store`

mod pack;

use micabox::Mounts;
use micabox_image::Store;
use micabox_image::store::{FsckOptions, PruneOptions};
use std::cmp::Reverse;

use crate::server;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{Table, print, print_json, size};
use micabox_program::{serving, settings, visible};

/// Maintain the store (space, packing, leftovers, damage), and serve its images to other machines
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show how much disk space each part takes
    Df {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images without a name, layers without an image, warm templates, and leftovers
    Prune {
        /// Also remove images with a name, unless a sandbox uses them
        #[arg(short, long)]
        all: bool,
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Read and check everything; exit code 1 if something is wrong
    ///
    /// Hashes every layer, checks every structure, and prints what is wrong and what a repair
    /// would do.
    Fsck {
        /// Remove what is damaged, so that the next pull fetches it again
        #[arg(long)]
        repair: bool,
        /// Also rebuild and hash every layer's archive, as a save or a push would
        #[arg(long)]
        archives: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    Pack(pack::PackArgs),
    Unpack(pack::UnpackArgs),
    Serve(serving::ReplicaArgs),
}

/// Runs a subcommand.
pub fn execute(args: &Args) -> Outcome {
    if matches!(args.command, Command::Serve(_)) {
        return server::become_it();
    }
    if let Command::Pack(args) = &args.command
        && args.begin()
    {
        return Ok(0);
    }
    let store = settings::store()?;
    // Cleans up after killed owners and servers, which would keep images in use.
    let sandboxes = settings::sandboxes(&store)?;
    sandboxes.list()?;
    Mounts::of(&sandboxes).tidy()?;
    match args.command {
        Command::Pack(ref args) => pack::pack(&sandboxes, args),
        Command::Unpack(ref args) => pack::unpack(&sandboxes, args),
        Command::Df { json } => df(&store, json),
        Command::Prune { all, dry_run, json } => {
            if !dry_run {
                sandboxes.discard_left_snapshots()?;
            }
            prune(&store, PruneOptions { all, dry_run }, json)
        }
        Command::Fsck {
            repair,
            archives,
            json,
        } => fsck(&store, &FsckOptions { repair, archives }, json),
        Command::Serve(_) => server::become_it(),
    }
}

fn df(store: &Store, json: bool) -> Outcome {
    let usage = store.usage()?;
    if json {
        print_json(&usage)?;
        return Ok(0);
    }
    let mut table = Table::new(&["IMAGE", ">SIZE", ">SHARED", ">OWN", ">SANDBOXES"]);
    // The largest ones first, and not in the order of their digests.
    let mut images: Vec<_> = usage.images.iter().collect();
    images.sort_by_key(|image| (Reverse(image.size), &image.references));
    for image in images {
        let names: Vec<_> = image
            .references
            .iter()
            .map(|name| name.familiar())
            .collect();
        table.row([
            if names.is_empty() {
                image.manifest_digest.to_string().chars().take(19).collect()
            } else {
                names.join(", ")
            },
            size(image.size),
            size(image.shared_size),
            size(image.unique_size),
            image.sandboxes.len().to_string(),
        ]);
    }
    let mut sums = Table::new(&["", ">"]);
    for (what, bytes) in [
        (counted(usage.layers, "layer"), usage.layers_size),
        ("of them shared".into(), usage.shared_size),
        (
            format!("of them {} packed", usage.packed_layers),
            usage.packs_size,
        ),
        (
            format!(
                "packed disks and memories of snapshots and volumes: {}",
                usage.packed_files
            ),
            usage.packed_files_size,
        ),
        ("saved by packing".into(), usage.saved_size),
        (
            "of unpacked layers, blocks that others have too".into(),
            usage.common_size,
        ),
        (
            format!("layers here in part: {}", usage.lazy_layers),
            usage.lazy_size,
        ),
        (
            format!("blobs kept as they came: {}", usage.kept_blobs),
            usage.kept_blobs_size,
        ),
        ("merged metadata".into(), usage.metadata_size),
        ("warm templates".into(), usage.templates_size),
        ("imports under way or killed".into(), usage.temporary_size),
        ("together".into(), usage.total_size),
        ("can be pruned".into(), usage.reclaimable_size),
    ] {
        sums.row([what, size(bytes)]);
    }
    let path = store.root().display();
    print(&format!("{}{}\n{path}\n", table.render(), sums.render()))?;
    Ok(0)
}

fn prune(store: &Store, options: PruneOptions, json: bool) -> Outcome {
    let pruned = store.prune(&options)?;
    if json {
        print_json(&pruned)?;
        return Ok(0);
    }
    let mut text = String::new();
    for reference in &pruned.references {
        text.push_str(&format!("name   {}\n", reference.familiar()));
    }
    for digest in &pruned.images {
        text.push_str(&format!("image  {digest}\n"));
    }
    for digest in &pruned.layers {
        text.push_str(&format!("layer  {digest}\n"));
    }
    for digest in &pruned.blobs {
        text.push_str(&format!("blob   {digest}\n"));
    }
    if pruned.templates > 0 {
        text.push_str(&format!("{}\n", counted(pruned.templates, "warm template")));
    }
    if pruned.views > 0 {
        text.push_str(&format!("{}\n", counted(pruned.views, "trimmed view")));
    }
    if let Some(why) = &pruned.kept {
        text.push_str(&format!("packs are left alone: {}\n", visible::line(why)));
    }
    let freed = if options.dry_run {
        "would be freed"
    } else {
        "freed"
    };
    text.push_str(&format!("{} {freed}\n", size(pruned.size)));
    print(&text)?;
    Ok(0)
}

/// Formats a number of things, of which one has no s.
fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

fn fsck(store: &Store, options: &FsckOptions, json: bool) -> Outcome {
    let report = store.fsck_with(options)?;
    let code = u8::from(!report.is_clean());
    if json {
        print_json(&report)?;
        return Ok(code);
    }
    let mut text = String::new();
    for finding in &report.findings {
        let repair = if finding.repaired {
            format!("repaired: {}", finding.repair)
        } else {
            format!("--repair would: {}", finding.repair)
        };
        let path = visible::path(&finding.path);
        let problem = visible::line(&finding.problem);
        text.push_str(&format!("{path}: {problem}\n  {repair}\n"));
    }
    for stranger in &report.strangers {
        text.push_str(&format!(
            "{}: not the store's; left alone\n",
            visible::path(stranger)
        ));
    }
    if report.lost_chunks > 0 {
        text.push_str(&format!(
            "{} of layers that are here in part are damaged: they count as missing, and are fetched again when they are read\n",
            counted(report.lost_chunks, "chunk")
        ));
    }
    let (layers, images, bytes) = (report.layers, report.images, size(report.bytes));
    let verdict = match (report.findings.len(), report.is_clean()) {
        (0, _) => "all well".to_owned(),
        (count, true) => format!("{count} repaired"),
        (count, false) => format!("{count} damaged"),
    };
    let mut checked = vec![counted(layers, "layer"), counted(images, "image")];
    if report.blobs > 0 {
        checked.push(counted(report.blobs, "kept blob"));
    }
    if report.files > 0 {
        checked.push(counted(report.files, "packed disk or memory"));
    }
    checked.push(format!("{bytes} read"));
    if report.sealed > 0 {
        checked.push(format!("{} with fs-verity", counted(report.sealed, "file")));
    }
    let checked = checked.join(", ");
    text.push_str(&format!("{checked}: {verdict}\n"));
    print(&text)?;
    match code {
        0 => Ok(0),
        _ => {
            Err(Failure::new("the store is damaged").hint("`mica store fsck --repair` repairs it"))
        }
    }
}
