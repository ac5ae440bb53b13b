//! Which of the host's neighbours a real machine reaches, and by which names. Apart from
//! `network.rs`, which also runs where no neighbour can be made.

use std::io::Write;
use std::net::TcpListener;

use micabox_testing::network::{NEIGHBOUR, OWN, World, resolver};

use crate::support::Home;

#[test]
#[ignore = "needs root and a built guest"]
fn a_networks_rules_and_names_decide_which_neighbours_are_open() {
    let Some(world) = World::enter() else {
        return;
    };
    let any = (std::net::Ipv4Addr::UNSPECIFIED, 80);
    let here = TcpListener::bind(any).unwrap();
    let there = world.there(|| TcpListener::bind(any).unwrap());
    for (server, body) in [(here, "here"), (there, "there")] {
        std::thread::spawn(move || {
            for mut stream in server.incoming().flatten() {
                let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}\n");
                // Closing before the request is read would reset the connection.
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
    }
    let dns = resolver(NEIGHBOUR).to_string();
    let script = format!(
        "for to in {OWN} {NEIGHBOUR} www.test www.example; do
             echo GET / | nc -w 10 $to 80 2>/dev/null | tail -n 1 | grep here || echo no
         done"
    );
    let home = Home::new();
    let run = |flags: &[&str]| {
        let first = ["run", "--rm", "--dns", &dns];
        let arguments = [&first, flags, &["box", "sh", "-c", &script]].concat();
        home.output(&arguments).ok().replace('\n', " ")
    };
    assert_eq!(run(&[]), "no there there no ");
    assert_eq!(run(&["--net-allow", "0.0.0.0/0"]), "no there no no ");
    // Reachable by its name only, until the name was resolved; hence the order above.
    assert_eq!(run(&["--net-allow", "*.test:80"]), "no no there no ");
    let neighbour = NEIGHBOUR.to_string();
    assert_eq!(run(&["--net-deny", &neighbour]), "no no no no ");
}
