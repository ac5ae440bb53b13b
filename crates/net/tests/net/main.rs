//! A network, with the machine's kernel or frames that no kernel sends at its ends.

mod connecting;
mod datagrams;
mod guest;
mod hostile;
mod link;
mod mutations;
mod policy;
mod tcp;
