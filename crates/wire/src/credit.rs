//! Credit: how many bytes of one stream may be in flight.

/// A violation of a stream's credit by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The granted credit exceeds 32 bits.
    #[error("the peer granted more credit than a window can hold")]
    Overflow,
    /// The peer sent more than it was granted.
    #[error("the peer sent {sent} bytes with {granted} left in the window")]
    Exceeded {
        /// Bytes in the message.
        sent: usize,
        /// Bytes that were left.
        granted: u32,
    },
}

/// The sender's side of one stream: the credit that it has left.
#[derive(Debug)]
pub struct SendWindow {
    available: u32,
}

impl SendWindow {
    /// Creates a window with `initial` bytes of credit.
    pub fn new(initial: u32) -> Self {
        Self { available: initial }
    }

    /// Returns the number of bytes that may be sent now.
    pub fn available(&self) -> usize {
        self.available as usize
    }

    /// Takes credit for a message of `bytes`, which must be available.
    ///
    /// # Errors
    /// [`WindowError::Exceeded`]; the window is unchanged.
    pub fn take(&mut self, bytes: usize) -> Result<(), WindowError> {
        self.available = subtract(self.available, bytes)?;
        Ok(())
    }

    /// Adds the receiver's credit.
    ///
    /// # Errors
    /// [`WindowError::Overflow`]; the window is unchanged.
    pub fn grant(&mut self, bytes: u32) -> Result<(), WindowError> {
        self.available = self
            .available
            .checked_add(bytes)
            .ok_or(WindowError::Overflow)?;
        Ok(())
    }
}

/// The receiver's side of one stream: the room that it has promised.
#[derive(Debug)]
pub struct ReceiveWindow {
    size: u32,
    /// Granted and not yet received.
    granted: u32,
    /// Passed on and not yet granted again.
    returned: u32,
}

impl ReceiveWindow {
    /// Creates a window of `size` bytes, all of it granted.
    pub fn new(size: u32) -> Self {
        Self {
            size,
            granted: size,
            returned: 0,
        }
    }

    /// Returns the number of bytes that the peer may send now.
    pub fn available(&self) -> u32 {
        self.granted
    }

    /// Returns the number of bytes that the receiver must be ready to hold.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Accounts for a message of `bytes` from the peer.
    ///
    /// # Errors
    /// [`WindowError::Exceeded`]: the peer violates the protocol, and must not be read from again.
    pub fn received(&mut self, bytes: usize) -> Result<(), WindowError> {
        self.granted = subtract(self.granted, bytes)?;
        Ok(())
    }

    /// Accounts for `bytes` that the receiver has passed on. Returns the credit to send now, if
    /// any: at least half a window, so that small reads do not each cost a message.
    pub fn handed_on(&mut self, bytes: usize) -> Option<u32> {
        // No more can be passed on than was received; a caller's mistake must not grant credit for
        // room that does not exist.
        let held = self.size - self.granted - self.returned;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(held);
        self.returned += bytes;
        if self.returned == 0 || self.returned < self.size / 2 {
            return None;
        }
        let credit = std::mem::take(&mut self.returned);
        self.granted += credit;
        Some(credit)
    }
}

fn subtract(left: u32, bytes: usize) -> Result<u32, WindowError> {
    u32::try_from(bytes)
        .ok()
        .and_then(|bytes| left.checked_sub(bytes))
        .ok_or(WindowError::Exceeded {
            sent: bytes,
            granted: left,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_can_not_take_more_than_it_has() {
        let mut window = SendWindow::new(10);
        window.take(7).unwrap();
        assert_eq!(
            window.take(4),
            Err(WindowError::Exceeded {
                sent: 4,
                granted: 3
            })
        );
        assert_eq!(window.available(), 3);
        window.grant(u32::MAX - 3).unwrap();
        assert_eq!(window.grant(1), Err(WindowError::Overflow));
        assert_eq!(window.available(), u32::MAX as usize);
    }

    #[test]
    fn credit_returns_in_half_windows() {
        let mut window = ReceiveWindow::new(100);
        window.received(100).unwrap();
        assert!(window.received(1).is_err());
        assert_eq!(window.handed_on(49), None);
        assert_eq!(window.handed_on(1), Some(50));
        window.received(50).unwrap();
        assert!(window.received(1).is_err());
        assert_eq!(window.handed_on(100), Some(100));
    }

    #[test]
    fn a_credit_window_of_one_byte_works() {
        let mut window = ReceiveWindow::new(1);
        assert_eq!(window.handed_on(0), None);
        for _ in 0..3 {
            window.received(1).unwrap();
            assert_eq!(window.handed_on(1), Some(1));
        }
    }

    #[test]
    fn credit_never_exceeds_what_was_received() {
        let mut window = ReceiveWindow::new(8);
        window.received(3).unwrap();
        assert_eq!(window.handed_on(usize::MAX), None);
        window.received(5).unwrap();
        assert_eq!(window.handed_on(usize::MAX), Some(8));
        assert_eq!(window.handed_on(usize::MAX), None);
    }
}
