//! A proxy in front of a registry, which holds and refuses its answers.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// What happens to answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// They are passed on.
    Pass,
    /// They don't come yet.
    Hold,
    /// Connections end in their place.
    Refuse,
}

/// A proxy on the loopback interface.
pub struct Proxy {
    address: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    answers: Answers,
    /// Bytes of answers that were passed on.
    passed: u64,
    /// The number of these after which answers are held.
    most: u64,
    /// How often an answer was held.
    held: u64,
}

impl Proxy {
    /// Forwards connections to a registry.
    ///
    /// # Panics
    /// If it can't listen.
    #[must_use]
    pub fn start(registry: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State {
            answers: Answers::Pass,
            passed: 0,
            most: u64::MAX,
            held: 0,
        };
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            state: Arc::new((Mutex::new(state), Condvar::new())),
        };
        let (registry, state) = (registry.to_owned(), Arc::clone(&proxy.state));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if state.0.lock().unwrap().answers == Answers::Refuse {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&registry) else {
                    continue;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut &from, &mut &to));
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    pass(&server, &client, &state);
                    let _ = client.shutdown(Shutdown::Both);
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        proxy
    }

    /// Returns its address and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sets what happens to answers from now on, those that are held included.
    ///
    /// # Panics
    /// If a thread of it has.
    pub fn set(&self, answers: Answers) {
        let mut state = self.state.0.lock().unwrap();
        (state.answers, state.most) = (answers, u64::MAX);
        drop(state);
        self.state.1.notify_all();
    }

    /// Holds answers once so many more bytes were passed on.
    ///
    /// # Panics
    /// If a thread of it has.
    pub fn hold_after(&self, bytes: u64) {
        let mut state = self.state.0.lock().unwrap();
        state.most = state.passed + bytes;
    }

    /// Returns how many bytes of answers were passed on.
    ///
    /// # Panics
    /// If a thread of it has.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.state.0.lock().unwrap().passed
    }

    /// Returns how often an answer was held.
    ///
    /// # Panics
    /// If a thread of it has.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.state.0.lock().unwrap().held
    }
}

/// Passes answers on.
fn pass(mut server: &TcpStream, mut client: &TcpStream, shared: &(Mutex<State>, Condvar)) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        let mut state = shared.0.lock().unwrap();
        if state.passed >= state.most {
            state.answers = Answers::Hold;
        }
        if state.answers == Answers::Hold {
            state.held += 1;
        }
        while state.answers == Answers::Hold {
            state = shared.1.wait(state).unwrap();
        }
        if state.answers == Answers::Refuse {
            return;
        }
        state.passed += count as u64;
        drop(state);
        if client.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
