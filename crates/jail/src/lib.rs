//! Jailed processes: all code that reads hostile input runs in one, and opens nothing.
//!
//! A worker is the same program in a process of its own ([`run_if_worker`], which the program must
//! call first). It is given open descriptors, enters the jail ([`enter`]), gives up the system
//! calls that it won't make ([`Filter`]), and only then reads its input. A virtual machine is one
//! kind of worker, with a process for as long as it runs. The other kind is a *parser*, which
//! answers one call ([`Call`]):
//!
//! ```no_run
//! use std::{fs::File, io::Read, os::fd::OwnedFd};
//! use micabox_jail::{Call, Kind, Limits, Worker};
//!
//! /// Counts the bytes of the first file.
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Count {
//!     most: u64,
//! }
//!
//! impl Call for Count {
//!     const KIND: &'static str = "count";
//!     type Reply = u64;
//!     type Error = String; // anything that serde knows
//!     /// In the worker: it reads and writes `files`, allocates, starts threads; nothing else.
//!     fn run(self, files: Vec<OwnedFd>) -> Result<u64, String> {
//!         let file = File::from(files.into_iter().next().ok_or("no file")?);
//!         let read = std::io::copy(&mut file.take(self.most), &mut std::io::sink());
//!         read.map_err(|error| error.to_string())
//!     }
//! }
//!
//! // First of all in `main`; in tests with a harness, `run_if_worker_before_main!`.
//! micabox_jail::run_if_worker(&[Kind::parser::<Count>()]);
//! let file = File::open("/etc/passwd").unwrap().into();
//! let limits = Limits { memory: 64 << 20, ..Limits::default() };
//! let worker = Worker::start(&Count { most: 1 << 20 }, vec![file], &limits).unwrap();
//! let bytes = worker.wait().unwrap(); // or `CallError`: its own, its death, no start
//! ```
//!
//! Dropping a [`Worker`] kills it. A worker never outlives the process that started it, and the
//! user's Ctrl-C does not reach it. It can't query the number of processors or read environment
//! variables: such values must be in the request. A pipe among its files ends for the other side
//! when the worker drops it. A long stream goes to a worker through shared memory ([`Feed`]).

#![warn(unsafe_code)]

mod call;
mod channel;
mod children;
pub mod container;
mod environment;
mod feed;
mod fuse_ring;
mod heap;
mod identity;
mod numbers;
mod seccomp;
mod start;
mod tail;
mod title;
mod verity;
mod walls;
mod worker;
mod zygote;

pub use call::{Call, CallError, Death, Limits, Worker, probe, wait_for_ended_workers};
pub use channel::clone_fuse_channel;
pub use children::{adopt_orphans, end_children_but};
pub use feed::{Fed, Feed, NoRoom};
pub use fuse_ring::{FuseRing, RING_HEADERS};
pub use heap::give_back_free_memory;
pub use identity::Claim;
pub use seccomp::{CAUGHT, Filter};
pub use start::cgroup::{Cgroup, Freezer, GroupMemory, Place, ProcessorTime, Quota};
pub use start::child::{Child, Program, Spawned};
pub use start::confine::{
    CAP_DAC_READ_SEARCH, CAP_MKNOD, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, Confinement, MAX_FILES,
};
pub use start::supervised::{Running, Supervised};
pub use tail::Tail;
pub use verity::{enable_verity, verity_digest};
pub use walls::Error as WallsError;
pub use walls::{
    Error, FOLDER_CAPABILITIES, View, Walls, enter, enter_available, enter_folder,
    enter_for_program, enter_own_mounts, enter_with, forbid_paths,
};
pub use worker::{
    Kind, NO_PROGRAM, arguments, plain_arguments, program, run_if_worker, take, take_inherited,
};
pub use zygote::{Forked, end_zygote, fork, start_zygote};
