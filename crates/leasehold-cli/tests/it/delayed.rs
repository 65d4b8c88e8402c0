//! A command that is told to end while its request for a lock is on the way.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::harness::Site;

/// A way to a server on which what is first asked of a script comes late, and all that comes behind
/// it on its connection.
struct SlowOnce {
    url: String,
    /// Tells once it was sent.
    sent: mpsc::Receiver<()>,
}

impl SlowOnce {
    fn start(server: SocketAddr, late_by: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (tell, sent) = mpsc::channel();
        let was_sent = Arc::new(AtomicBool::new(false));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, mut server) =
                    (client.unwrap(), TcpStream::connect(server).unwrap());
                let (mut to_client, mut from_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    drop(std::io::copy(&mut from_server, &mut to_client));
                    drop(to_client.shutdown(Shutdown::Write));
                });
                let (tell, was_sent) = (tell.clone(), Arc::clone(&was_sent));
                thread::spawn(move || {
                    let mut bytes = [0; 65_536];
                    // What was sent arrives, also where its client has gone.
                    while let Ok(length @ 1..) = client.read(&mut bytes) {
                        let asks = bytes[..length].windows(7).any(|word| word == b"EVALSHA");
                        if asks && !was_sent.swap(true, Ordering::SeqCst) {
                            tell.send(()).unwrap();
                            thread::sleep(late_by);
                        }
                        if server.write_all(&bytes[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { url, sent }
    }
}

#[test]
fn a_command_that_a_signal_ends_leaves_no_lock_from_a_delayed_request() {
    let server = RedisServer::start();
    let direct = Site::at(server.url());
    direct.line("run warm -- true").expect(0);
    for (line, signal) in [
        ("run k -- echo never", Signal::TERM),
        ("run k --limit 3 -- echo never", Signal::INT),
        ("acquire k --ttl 1m", Signal::HUP),
        ("elect k -- echo never", Signal::TERM),
    ] {
        let way = SlowOnce::start(server.addr(), Duration::from_millis(600));
        let mut command = Site::at(way.url.clone()).start(line.split(' '));
        way.sent.recv().unwrap();
        command.process().signal(signal);
        command.finish();
        direct.line("run k -n -- true").expect(0);
    }
}
