//! The agent's channel, in both directions.

use std::fmt::Debug;

use micabox_wire::{
    Decoder, ExitStatus, Hello, Message, OutputStream, ToGuest, ToHost, TtySize, encode, preamble,
    read_message,
};

/// Decodes a stream; the first byte chooses the direction and the size of pieces.
pub fn stream(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(first >> 2) + 1;
    match first & 3 {
        0 => frames::<ToGuest>(bytes, piece),
        1 => {
            let _ = preamble::read(&mut &*bytes);
        }
        _ => frames::<ToHost>(bytes, piece),
    }
}

/// Checks that the messages do not depend on the pieces, and that each survives another round trip.
pub(crate) fn frames<M: Message + PartialEq + Debug>(bytes: &[u8], piece: usize) {
    let mut decoder = Decoder::<M>::new();
    let mut messages = Vec::new();
    let mut failed = false;
    'stream: for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => {
                    failed = true;
                    break 'stream;
                }
            }
        }
    }
    let mut reader = bytes;
    let mut read = Vec::new();
    let ended = loop {
        match read_message::<M>(&mut reader) {
            Ok(Some(message)) => read.push(message),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    assert_eq!(messages, read, "pieces make a difference");
    assert_eq!(ended, !failed && decoder.at_boundary(), "{messages:?}");
    for message in messages {
        let mut frame = Vec::new();
        encode(&message, &mut frame).expect("it came in a frame");
        assert!(frame.len() <= 4 + M::MAX_FRAME);
        let again = read_message::<M>(&mut &frame[..]);
        assert_eq!(again.expect("ours").as_ref(), Some(&message));
    }
}

/// The messages of a conversation.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let hello = ToHost::Hello(Hello {
        kernel: "6.12.0".into(),
        init_uptime_us: 80_000,
        memory_bytes: 1 << 29,
        cpus: 2,
    });
    let output = ToHost::Output {
        id: 1,
        stream: OutputStream::Stdout,
        data: b"hello\n".to_vec(),
    };
    let exited = ToHost::Exited {
        id: 1,
        status: ExitStatus::Exited(0),
    };
    let closed = ToHost::StdinClosed { id: 1 };
    let done = ToHost::ShutdownDone {
        problem: Some("busy".into()),
    };
    let size = TtySize {
        rows: 24,
        columns: 80,
    };
    let stdin = ToGuest::Stdin {
        id: 1,
        data: b"input".to_vec(),
    };
    let resize = ToGuest::Resize { id: 1, size };
    vec![
        (
            "to-host",
            encoded(2 | 63 << 2, &[hello, output, exited, closed, done]),
        ),
        (
            "to-guest",
            encoded(
                6 << 2,
                &[stdin, resize, ToGuest::Shutdown, ToGuest::Quiesce],
            ),
        ),
        ("preamble", b"\x01MICABOX\n\x04\0\0\0".to_vec()),
    ]
}

/// Returns the frames of messages, after a byte.
pub(crate) fn encoded<M: Message>(first: u8, messages: &[M]) -> Vec<u8> {
    let mut bytes = vec![first];
    for message in messages {
        encode(message, &mut bytes).expect("it is short");
    }
    bytes
}
