//! The tools for files of running sandboxes.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use micabox::{ErrorKind, Existing, WriteOptions};
use micabox_async::{Files, Sandbox};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::call::Call;
use super::tool::{Effect, Tool, Waiting};
use crate::mcp::server::Server;
use micabox_program::failure::Failure;

/// Bytes of a file that are read unless the client says otherwise.
const PIECE: u64 = 32 << 10;

/// Most bytes of a file that are read at a time.
pub const MOST: u64 = 4 << 20;

/// Most entries of a list, and most bytes of their names.
const ENTRIES: usize = 1000;
const NAMES: usize = 256 << 10;

/// How bytes are written in JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As text.
    #[default]
    Text,
    /// In base64.
    Base64,
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Name or ID of a running sandbox.
    sandbox: String,
    /// Path in the sandbox; a relative one begins in the working directory of commands.
    path: String,
    /// Bytes to skip; 0 unless given.
    #[serde(default)]
    offset: u64,
    /// Most bytes to read: 32768 unless given, 4194304 at most.
    length: Option<u64>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Contents {
    /// The bytes.
    content: String,
    /// How they are written: base64 if they are no text.
    encoding: Encoding,
    /// How many there are in `content`.
    bytes: u64,
    /// The `offset` of what follows, if there is more.
    next_offset: Option<u64>,
}

/// Returns a path from the sandbox's root; a relative one begins where its commands do.
fn absolute(sandbox: &Sandbox, path: &str) -> Result<String, Failure> {
    if path.is_empty() {
        return Err(Failure::of_kind(ErrorKind::Invalid, "the path is empty"));
    }
    let defaults = sandbox.record().defaults.as_ref();
    let directory = defaults.map_or_else(PathBuf::new, |command| PathBuf::from(&command.workdir));
    let path = Path::new("/").join(directory).join(path);
    path.into_os_string().into_string().map_err(|_| {
        let what = "the working directory is not UTF-8: an absolute path is needed";
        Failure::of_kind(ErrorKind::Invalid, what)
    })
}

/// Reads at most `length` bytes from `offset` on. Returns whether there are more as well.
pub async fn read(
    files: &Files,
    path: &str,
    offset: u64,
    length: u64,
) -> Result<(Vec<u8>, bool), Failure> {
    let mut bytes = Vec::new();
    let reader = files.open_range(path, offset, Some(length + 1)).await?;
    // What a guest sends is its own affair.
    let read = reader.take(length + 1).read_to_end(&mut bytes).await;
    read.map_err(|error| Failure::of(&error))?;
    let is_more = bytes.len() as u64 > length;
    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    Ok((bytes, is_more))
}

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    const DESCRIPTION: &'static str = "Reads a file of a running sandbox, or a part of it.";
    const EFFECT: Effect = Effect::Reads;
    type Output = Contents;

    fn readable(read: &Contents) -> Vec<String> {
        let encoding = match read.encoding {
            Encoding::Text => "",
            Encoding::Base64 => ", in base64",
        };
        let more = read
            .next_offset
            .map(|offset| format!("; more from the offset {offset} on"));
        let note = format!(
            "[{} bytes{encoding}{}]",
            read.bytes,
            more.unwrap_or_default()
        );
        match (&read.encoding, read.next_offset) {
            (Encoding::Text, None) if read.bytes > 0 => vec![read.content.clone()],
            _ => vec![read.content.clone(), note],
        }
    }
}

impl Waiting for ReadFile {
    async fn call(self, server: &Server, _call: &Call) -> Result<Contents, Failure> {
        let sandbox = Sandbox::connect(&server.sandboxes, &self.sandbox).await?;
        let (files, path) = (sandbox.files(), absolute(&sandbox, &self.path)?);
        let length = self.length.unwrap_or(PIECE).clamp(1, MOST);
        let (mut bytes, is_more) = read(&files, &path, self.offset, length).await?;
        if is_more
            && let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
            && error.valid_up_to() > 0
        {
            // The rest of the last character follows.
            bytes.truncate(error.valid_up_to());
        }
        let count = bytes.len() as u64;
        let (content, encoding) = match String::from_utf8(bytes) {
            Ok(text) => (text, Encoding::Text),
            Err(error) => (STANDARD.encode(error.as_bytes()), Encoding::Base64),
        };
        Ok(Contents {
            content,
            encoding,
            bytes: count,
            next_offset: is_more.then(|| self.offset.saturating_add(count)),
        })
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Name or ID of a running sandbox.
    sandbox: String,
    /// Path in the sandbox; a relative one begins in the working directory of commands. Missing directories are
    /// made.
    path: String,
    /// What to write.
    content: String,
    /// How `content` is written: `text` unless given.
    #[serde(default)]
    encoding: Encoding,
    /// Whether to add to the end of the file, and not replace what is in it.
    #[serde(default)]
    append: bool,
    /// Whether the file can be executed, if it is new.
    #[serde(default)]
    executable: bool,
    /// Name or number of the user who writes it; root unless given.
    user: Option<String>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Written {
    /// How many bytes were written.
    bytes: u64,
}

impl Tool for WriteFile {
    const NAME: &'static str = "write_file";
    const DESCRIPTION: &'static str = "Writes a file of a running sandbox.";
    const EFFECT: Effect = Effect::Changes;
    type Output = Written;
}

impl Waiting for WriteFile {
    async fn call(self, server: &Server, _call: &Call) -> Result<Written, Failure> {
        let bytes = match self.encoding {
            Encoding::Text => self.content.into_bytes(),
            Encoding::Base64 => STANDARD
                .decode(&self.content)
                .map_err(|error| Failure::of(&error).context("decoding `content`"))?,
        };
        let sandbox = Sandbox::connect(&server.sandboxes, &self.sandbox).await?;
        let path = absolute(&sandbox, &self.path)?;
        let mut files = sandbox.files();
        if let Some(user) = self.user {
            files = files.as_user(user);
        }
        let options = WriteOptions {
            existing: if self.append {
                Existing::Append
            } else {
                Existing::Truncate
            },
            mode: if self.executable { 0o755 } else { 0o644 },
            parents: true,
        };
        files.write_with(&path, &bytes, options).await?;
        Ok(Written {
            bytes: bytes.len() as u64,
        })
    }
}

/// Arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// Name or ID of a running sandbox.
    sandbox: String,
    /// Path of a directory in the sandbox; a relative one begins in the working directory of commands.
    path: String,
    /// How many levels to list: 1, the directory's own entries, unless given.
    depth: Option<u32>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Listed {
    /// What is there; 1000 at most.
    entries: Vec<Entry>,
    /// Whether there is more than that.
    is_cut: bool,
}

/// A file.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Entry {
    /// Its path from the listed directory.
    path: String,
    /// file, directory, symlink, fifo, socket, `char_device` or `block_device`.
    kind: String,
    /// Bytes.
    size: u64,
    /// Permissions in octal digits.
    mode: String,
    /// When its contents were changed, in seconds since 1970-01-01 UTC.
    modified: i64,
    /// What a symbolic link says.
    target: Option<String>,
}

impl Tool for ListFiles {
    const NAME: &'static str = "list_files";
    const DESCRIPTION: &'static str = "Lists the files in a directory of a running sandbox.";
    const EFFECT: Effect = Effect::Reads;
    type Output = Listed;
}

impl Waiting for ListFiles {
    async fn call(self, server: &Server, call: &Call) -> Result<Listed, Failure> {
        let sandbox = Sandbox::connect(&server.sandboxes, &self.sandbox).await?;
        let (files, path) = (sandbox.files(), absolute(&sandbox, &self.path)?);
        let (mut entries, mut names) = (Vec::new(), 0);
        let mut all = files.entries(&path, self.depth.unwrap_or(1).max(1)).await?;
        while let Some(entry) = all.next().await {
            let entry = entry?;
            let target = entry
                .target
                .as_ref()
                .map(|to| to.to_string_lossy().into_owned());
            let path = entry.path.to_string_lossy().into_owned();
            names += path.len() + target.as_ref().map_or(0, String::len);
            if entries.len() == ENTRIES || names > NAMES || call.is_cancelled() {
                return Ok(Listed {
                    entries,
                    is_cut: true,
                });
            }
            let kind = serde_json::to_value(entry.stat.kind).unwrap_or_default();
            entries.push(Entry {
                path,
                kind: kind.as_str().unwrap_or_default().to_owned(),
                size: entry.stat.size,
                mode: format!("{:04o}", entry.stat.mode),
                modified: entry.stat.modified.seconds,
                target,
            });
        }
        Ok(Listed {
            entries,
            is_cut: false,
        })
    }
}
