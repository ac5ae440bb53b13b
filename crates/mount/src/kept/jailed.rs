//! Reads archives and images in a worker in the jail, which sends what is in them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;

use micabox_jail::{Call, Kind, Limits, Worker};
use micabox_tar::Members;
use serde::{Deserialize, Serialize};

use super::sent::{Received, Sender};
use super::{BUFFER, KeepError, image, is_image};

/// The kind of worker that reads archives and images for [`load`](super::load).
pub const LOADER: Kind = Kind::parser::<Load>();

/// Bytes of memory of a worker: names and inodes of an image.
const MEMORY: u64 = 2 << 30;

/// A request to read the first file and to send what is in it to the second.
#[derive(Serialize, Deserialize)]
pub(super) struct Load;

/// Why a file can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

impl Call for Load {
    const KIND: &'static str = "load-tree";
    type Reply = ();
    type Error = Refusal;

    fn run(self, files: Vec<OwnedFd>) -> Result<(), Refusal> {
        let files = <[OwnedFd; 2]>::try_from(files);
        let [file, output] = files.map_err(|_| Refusal("two files are needed".to_owned()))?;
        read(file.into(), output.into()).map_err(|error| Refusal(error.to_string()))
    }
}

fn read(mut file: File, output: File) -> Result<(), KeepError> {
    let mut sender = Sender::new(BufWriter::with_capacity(BUFFER, output));
    if is_image(&mut file)? {
        image::read(file, &mut sender)?;
    } else {
        let limits = micabox_tar::Limits::default();
        let mut members = Members::new(BufReader::with_capacity(BUFFER, file), limits);
        while let Some(member) = members.next_member()? {
            sender.add(&member, &mut members.body())?;
        }
    }
    Ok(sender.into_inner().flush()?)
}

/// What a worker sends, and how it ends.
pub(super) struct Loading {
    pub(super) received: Received<BufReader<io::PipeReader>>,
    worker: Worker<Load>,
}

impl Loading {
    pub(super) fn start(file: File) -> Result<Self, KeepError> {
        let (input, output) = io::pipe()?;
        let limits = Limits {
            memory: MEMORY,
            ..Limits::default()
        };
        let worker = Worker::start(&Load, vec![file.into(), output.into()], &limits)?;
        let received = Received::new(BufReader::with_capacity(BUFFER, input));
        Ok(Self { received, worker })
    }

    /// Returns what ended the stream, which is the worker's word if there is one.
    pub(super) fn finish(self, read: Result<(), KeepError>) -> Result<(), KeepError> {
        match read {
            // The worker says why it sends nothing more.
            Ok(()) | Err(KeepError::CutOff) => {
                self.worker.wait().map_err(KeepError::from).and(read)
            }
            // It would wait for a reader.
            Err(error) => Err(error),
        }
    }
}
