//! The first serial port: the kernel's console.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, Serial as Chip, SerialState};
use vmm_sys_util::eventfd::EventFd;

/// Maximum bytes held back: this makes one write to the host a line instead of one a byte.
const LINE: usize = 256;

/// The port. It has no input.
pub(crate) struct Serial(Chip<Interrupt, NoEvents, Lines>);

impl Serial {
    pub(crate) const FIRST_PORT: u16 = 0x3f8;
    pub(crate) const LAST_PORT: u16 = 0x3ff;
    pub(crate) const INTERRUPT: u32 = 4;

    /// Creates the port. Its output goes to `console`, which must be read. In a copy of a machine,
    /// `saved` has the port's registers.
    pub(crate) fn new(
        interrupt: EventFd,
        console: UnixStream,
        saved: Option<State>,
    ) -> io::Result<Self> {
        let lines = Lines {
            console,
            line: Vec::with_capacity(LINE),
        };
        let state = saved.map_or_else(SerialState::default, SerialState::from);
        Chip::from_state(&state, Interrupt(interrupt), NoEvents, lines)
            .map(Self)
            .map_err(|error| io::Error::other(format!("{error:?}")))
    }

    pub(crate) fn save(&self) -> State {
        self.0.state().into()
    }

    pub(crate) fn read(&mut self, offset: u16) -> u8 {
        self.0.read(offset as u8)
    }

    pub(crate) fn write(&mut self, offset: u16, value: u8) {
        // It fails when the console's reader is gone, which must not stop the guest.
        let _ = self.0.write(offset as u8, value);
    }

    /// Writes the bytes held back to the console.
    pub(crate) fn flush(&mut self) {
        let _ = self.0.writer_mut().hand_on();
    }
}

/// The port's registers. There is no input, so none waits to be read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
}

impl From<SerialState> for State {
    fn from(state: SerialState) -> Self {
        Self {
            divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
        }
    }
}

impl From<State> for SerialState {
    fn from(state: State) -> Self {
        let [low, high] = state.divisor;
        Self {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: Vec::new(),
        }
    }
}

struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

struct Lines {
    console: UnixStream,
    line: Vec<u8>,
}

impl Lines {
    fn hand_on(&mut self) -> io::Result<()> {
        let result = self.console.write_all(&self.line);
        self.line.clear();
        result
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.line.len() >= LINE || bytes.contains(&b'\n') {
            self.hand_on()?;
        }
        Ok(bytes.len())
    }

    /// The chip flushes after every byte.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn serial_output_is_handed_on_in_lines() {
        let (console, mut host) = UnixStream::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        let mut serial = Serial::new(EventFd::new(0).unwrap(), console, None).unwrap();
        let mut read = |serial: &mut Serial, bytes: &[u8]| {
            for byte in bytes {
                serial.write(0, *byte);
            }
            let mut buffer = [0; 1024];
            let count = host.read(&mut buffer).unwrap_or_default();
            String::from_utf8(buffer[..count].to_vec()).unwrap()
        };
        assert_eq!(read(&mut serial, b"Linux"), "");
        assert_eq!(read(&mut serial, b" 6\nno"), "Linux 6\n");
        serial.flush();
        assert_eq!(read(&mut serial, b""), "no");
        assert_eq!(read(&mut serial, &[b'x'; LINE]).len(), LINE);
    }
}
