//! `mica ext4 mkfs`

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use micabox_ext4::Timestamp;
use micabox_ext4::mkfs::{self, Journal};
use micabox_ground::{hex, random};
use micabox_spec::words::Bytes;
use serde::Serialize;

use super::file::about;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};

/// Make a filesystem in a new sparse file
///
/// The same UUID and time give the same bytes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to make
    file: PathBuf,
    /// The size, such as 8G
    #[arg(long)]
    size: Bytes,
    /// Its label, at most 16 bytes
    #[arg(long, default_value = "", value_parser = label)]
    label: String,
    /// Its UUID [default: a random one]
    #[arg(long, value_parser = uuid)]
    uuid: Option<[u8; 16]>,
    /// When it was made, in seconds since 1970 [default: $SOURCE_DATE_EPOCH, or now]
    #[arg(long, value_name = "SECONDS")]
    time: Option<i64>,
    /// Number of inodes [default: one for every 16 KiB, more for small ones]
    #[arg(long, value_name = "NUMBER")]
    inodes: Option<u64>,
    /// Size of the journal [default: 4M to 1G with the filesystem's size, none below 8M]
    #[arg(long, value_name = "SIZE", conflicts_with = "no_journal")]
    journal_size: Option<Bytes>,
    /// Make no journal
    #[arg(long)]
    no_journal: bool,
    /// Percentage of blocks reserved for root
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    reserved: u16,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Made {
    blocks: u64,
    block_size: u32,
    free_blocks: u64,
    inodes: u64,
    journal_blocks: u64,
    uuid: String,
}

/// Makes a filesystem.
pub fn execute(args: &Args) -> Outcome {
    let path = &args.file;
    let mut label = [0; 16];
    label
        .iter_mut()
        .zip(args.label.bytes())
        .for_each(|(to, from)| *to = from);
    let options = mkfs::Options {
        uuid: match args.uuid {
            Some(uuid) => uuid,
            None => random_uuid()?,
        },
        label,
        time: args
            .time
            .or_else(source_date)
            .unwrap_or(Timestamp::now().seconds),
        inodes: args.inodes,
        journal: match (args.no_journal, args.journal_size) {
            (true, _) => Journal::None,
            (_, Some(Bytes(bytes))) => Journal::Bytes(bytes),
            _ => Journal::Default,
        },
        reserved: args.reserved,
    };
    let mut file = create(args)?;
    let made = file
        .set_len(args.size.0)
        .map_err(about(path))
        .and_then(|()| mkfs::mkfs(&mut file, args.size.0, &options).map_err(about(path)))
        .and_then(|made| file.sync_all().map_err(about(path)).map(|()| made));
    if made.is_err() && !args.force {
        // Made by this command, and incomplete.
        let _ = std::fs::remove_file(path);
    }
    let summary = made?;
    let made = Made {
        blocks: summary.blocks,
        block_size: 4096,
        free_blocks: summary.free_blocks,
        inodes: summary.inodes,
        journal_blocks: summary.journal_blocks,
        uuid: uuid_text(options.uuid),
    };
    if args.json {
        print_json(&made)?;
        return Ok(0);
    }
    print(&format!(
        "{} blocks of 4 KiB, {} of them free; {} inodes; UUID {}\n",
        made.blocks, made.free_blocks, made.inodes, made.uuid
    ))?;
    Ok(0)
}

/// Makes the file, empty.
fn create(args: &Args) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    // What is put into it may be secret.
    options.read(true).write(true).mode(0o600);
    if args.force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(&args.file).map_err(|error| {
        let exists = error.kind() == std::io::ErrorKind::AlreadyExists;
        let failure = about(&args.file)(error);
        if exists {
            failure.hint("`--force` replaces it")
        } else {
            failure
        }
    })
}

fn random_uuid() -> Result<[u8; 16], Failure> {
    let mut uuid: [u8; 16] =
        random().map_err(|error| Failure::of(&error).context("reading random bytes"))?;
    // Version 4, variant 1 (RFC 9562).
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

fn source_date() -> Option<i64> {
    std::env::var("SOURCE_DATE_EPOCH").ok()?.parse().ok()
}

fn label(text: &str) -> Result<String, String> {
    if text.len() <= 16 {
        Ok(text.to_owned())
    } else {
        Err("a label has at most 16 bytes".into())
    }
}

/// Parses 0 to 50 percent, in hundredths of a percent.
fn percent(text: &str) -> Result<u16, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| "expected a percentage")?;
    if (0.0..=50.0).contains(&number) {
        Ok((number * 100.0) as u16)
    } else {
        Err("expected 0 to 50 percent".into())
    }
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|&byte| byte != b'-')
        .map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()
        .ok_or("expected 32 hexadecimal digits")?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect();
    match digits.len() {
        32 => bytes
            .try_into()
            .map_err(|_| "expected 32 hexadecimal digits".into()),
        _ => Err("expected 32 hexadecimal digits".into()),
    }
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = hex(uuid);
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed_as_they_are_printed() {
        let text = "01234567-89ab-cdef-fedc-ba9876543210";
        assert_eq!(uuid_text(uuid(text).unwrap()), text);
        for wrong in ["", "0", "01234567-89ab-cdef-fedc-ba987654321x", "é"] {
            assert!(uuid(wrong).is_err());
        }
    }
}
