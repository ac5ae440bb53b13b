//! What has come of an output and was not read yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use micabox_ground::lock;
use micabox_owner::protocol::MAX_DATA;

/// Makes both ends of a queue of bytes, whose bound is what the receiver grants.
pub(crate) fn pieces() -> (Put, Take) {
    let queue = Arc::<Mutex<Queue>>::default();
    (Put(Arc::clone(&queue)), Take(queue))
}

/// Where the connection puts bytes. Dropping it without an end breaks the output off.
#[derive(Debug)]
pub(crate) struct Put(Arc<Mutex<Queue>>);

/// Where the output's reader takes them.
#[derive(Debug)]
pub(crate) struct Take(Arc<Mutex<Queue>>);

/// What there is next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Piece(Vec<u8>),
    /// All has been taken.
    End,
    /// It broke off.
    Broken,
}

#[derive(Debug, Default)]
struct Queue {
    /// A command may write single bytes: each in a piece of its own would take many times its memory.
    pieces: VecDeque<Vec<u8>>,
    has_ended: bool,
    is_broken: bool,
    is_unread: bool,
    waker: Option<Waker>,
}

impl Put {
    /// Adds bytes; false if nothing reads them any more.
    pub(crate) fn push(&self, data: Vec<u8>) -> bool {
        let mut queue = lock(&self.0);
        if queue.is_unread {
            return false;
        }
        match queue.pieces.back_mut() {
            Some(last) if last.len() + data.len() <= MAX_DATA => last.extend(data),
            _ => queue.pieces.push_back(data),
        }
        queue.wake();
        true
    }

    /// Marks the end.
    pub(crate) fn end(&self) {
        let mut queue = lock(&self.0);
        queue.has_ended = true;
        queue.wake();
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.is_broken = true;
        queue.wake();
    }
}

impl Take {
    /// Waits for the next piece.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Next> {
        let mut queue = lock(&self.0);
        if let Some(piece) = queue.pieces.pop_front() {
            return Poll::Ready(Next::Piece(piece));
        }
        if queue.has_ended {
            return Poll::Ready(Next::End);
        }
        if queue.is_broken {
            return Poll::Ready(Next::Broken);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Refuses what comes from now on. Returns how many bytes had come.
    pub(crate) fn close(&self) -> usize {
        let mut queue = lock(&self.0);
        queue.is_unread = true;
        let pieces = std::mem::take(&mut queue.pieces);
        pieces.iter().map(Vec::len).sum()
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(take: &Take) -> Poll<Next> {
        take.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn single_bytes_share_a_piece() {
        let (put, take) = pieces();
        for _ in 0..MAX_DATA + 10 {
            assert!(put.push(vec![7]));
        }
        let whole = Next::Piece(vec![7; MAX_DATA]);
        assert_eq!(next(&take), Poll::Ready(whole));
        assert_eq!(next(&take), Poll::Ready(Next::Piece(vec![7; 10])));
        assert!(next(&take).is_pending());
        put.push(vec![8]);
        put.end();
        drop(put);
        assert_eq!(next(&take), Poll::Ready(Next::Piece(vec![8])));
        for _ in 0..2 {
            assert_eq!(next(&take), Poll::Ready(Next::End));
        }
    }

    #[test]
    fn what_breaks_off_or_is_not_read_has_an_end() {
        let (put, take) = pieces();
        put.push(vec![1, 2]);
        assert_eq!(take.close(), 2);
        assert!(!put.push(vec![3]));
        drop(put);
        assert_eq!(next(&take), Poll::Ready(Next::Broken));
    }
}
