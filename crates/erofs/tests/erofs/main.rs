//! Writing, reading and merging, beside erofs-utils, the kernel and models.

mod errors;
mod hostile;
mod merge;
mod merge_kernel;
mod mkfs;
mod support;
mod writer;
