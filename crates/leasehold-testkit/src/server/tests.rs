//! Tests of starting and ending real servers.

use std::io::ErrorKind;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

/// Sends PING without an account, over any stream.
fn ping(stream: impl Read + Write) -> io::Result<Reply> {
    Connection(BufReader::new(stream)).call(&["PING"])
}

fn pong() -> Reply {
    Reply::Status("PONG".to_owned())
}

#[test]
fn a_server_answers_on_a_port_of_its_own() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    assert_ne!(one.port(), two.port());
    assert_ne!(one.port(), 6379);
    assert_eq!(one.cli(&["SET", "key", "one"]), "OK");
    assert_eq!(two.cli(&["GET", "key"]), "");
    assert_eq!(one.cli(&["GET", "key"]), "one");
    assert_eq!(one.url(), format!("redis://127.0.0.1:{}", one.port()));
    assert!(one.version() >= (6, 2), "{:?}", one.version());
}

#[test]
fn commands_are_counted() {
    let server = RedisServer::start();
    assert_eq!(server.command_calls("get"), 0);
    for _ in 0..3 {
        assert_eq!(server.cli(&["GET", "key"]), "");
    }
    assert_eq!(server.command_calls("get"), 3);
    assert_eq!(server.cli(&["CONFIG", "RESETSTAT"]), "OK");
    assert_eq!(server.command_calls("get"), 0);
    assert_eq!(server.command_calls("config|resetstat"), 1);
}

#[test]
fn a_restart_keeps_the_port_and_forgets_the_data() {
    let server = RedisServer::start();
    let (port, pid) = (server.port(), server.pid());
    assert_eq!(server.cli(&["SET", "key", "value"]), "OK");
    server.kill();
    assert_eq!(server.try_cli(&["PING"]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.cli(&["EXISTS", "key"]), "0");
}

#[test]
fn an_append_only_file_survives_a_kill() {
    let server = RedisServer::builder().appendonly().start();
    assert_eq!(server.cli(&["SET", "key", "value"]), "OK");
    server.restart();
    assert_eq!(server.cli(&["GET", "key"]), "value");
    server.terminate();
    server.restart();
    assert_eq!(server.cli(&["GET", "key"]), "value");
}

#[test]
fn a_paused_server_is_reachable_and_silent() {
    let server = RedisServer::start();
    server.pause();
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.write_all(&encode(&["PING"])).unwrap();
    let mut reply = [0; 7];
    let silence = stream.read(&mut reply).unwrap_err();
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    server.resume();
    stream.set_read_timeout(Some(CLI_TIMEOUT)).unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn dropping_ends_the_server_and_removes_its_folder() {
    let server = RedisServer::start();
    let (addr, dir) = (server.addr(), server.dir().to_owned());
    server.pause();
    drop(server);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(!dir.exists());
}

#[test]
fn passwords_and_users_restrict_all_but_the_launcher() {
    let server = RedisServer::builder()
        .password("p@ss/word")
        .acl_user("alice on >wonder ~app:* +get")
        .start();
    assert_eq!(server.url(), format!("redis://:p%40ss%2Fword@127.0.0.1:{}", server.port()));
    assert_eq!(
        server.url_for("alice", "wonder"),
        format!("redis://alice:wonder@127.0.0.1:{}", server.port())
    );
    let stranger = ping(TcpStream::connect(server.addr()).unwrap()).unwrap();
    assert!(matches!(stranger, Reply::Error(text) if text.starts_with("NOAUTH")));
    let mut alice = Connection(BufReader::new(TcpStream::connect(server.addr()).unwrap()));
    assert_eq!(alice.call(&["AUTH", "alice", "wonder"]).unwrap(), Reply::Status("OK".to_owned()));
    assert_eq!(alice.call(&["GET", "app:x"]).unwrap(), Reply::Nil);
    assert!(
        matches!(alice.call(&["GET", "x"]).unwrap(), Reply::Error(text) if text.starts_with("NOPERM"))
    );
    assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", "changed"]), "OK");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn a_unix_socket_is_open_beside_the_port() {
    let server = RedisServer::builder().unix_socket().password("secret").start();
    let path = server.unix_path();
    assert_eq!(server.unix_url(), format!("redis+unix://{}?pass=secret", path.display()));
    let mut connection = Connection(BufReader::new(UnixStream::connect(path).unwrap()));
    assert_eq!(connection.call(&["AUTH", "secret"]).unwrap(), Reply::Status("OK".to_owned()));
    assert_eq!(connection.call(&["PING"]).unwrap(), pong());
}

#[test]
fn a_replica_follows_its_primary() {
    let primary = RedisServer::builder().password("secret").start();
    let replica = RedisServer::builder().replica_of(&primary).start();
    assert_eq!(replica.info("replication")["role"], "slave");
    // WAIT returns as soon as one replica has the write.
    let mut connection = primary.connect().unwrap();
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        connection.call(&["SET", "key", "value"]).unwrap();
        if connection.call(&["WAIT", "1", "100"]).unwrap() == Reply::Integer(1) {
            break;
        }
        assert!(Instant::now() < deadline, "{}", replica.log());
    }
    assert_eq!(replica.cli(&["GET", "key"]), "value");
}

#[test]
fn configuration_lines_and_arguments_reach_the_server() {
    let server = RedisServer::builder().config("maxclients 321").arg("--hz").arg("50").start();
    assert_eq!(server.cli(&["CONFIG", "GET", "maxclients"]), "maxclients\n321");
    assert_eq!(server.cli(&["CONFIG", "GET", "hz"]), "hz\n50");
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn a_server_that_refuses_its_configuration_shows_why() {
    drop(RedisServer::builder().config("no-such-directive yes").start());
}

#[test]
fn a_foreign_server_on_the_port_is_not_mistaken_for_ours() {
    let mut foreign = RedisServer::start();
    let mut ours = RedisServer::prepare(RedisServer::builder(), binary::find());
    std::mem::swap(&mut ours.port, &mut foreign.port);
    assert!(!ours.answers());
}

#[test]
fn all_callers_share_one_server() {
    let ports: Vec<u16> = thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| shared().port())).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    assert_eq!(shared().cli(&["PING"]), "PONG");
}

fn handshake(
    server: &RedisServer,
    trusted: &Identity,
    client: Option<&Identity>,
) -> io::Result<Reply> {
    let certificate = |pem: &Identity| CertificateDer::from_pem_slice(pem.certificate().as_bytes());
    let mut roots = RootCertStore::empty();
    roots.add(certificate(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        Some(client) => config
            .with_client_auth_cert(
                vec![certificate(client).unwrap()],
                PrivateKeyDer::from_pem_slice(client.key().as_bytes()).unwrap(),
            )
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.tls_port())).unwrap();
    stream.set_read_timeout(Some(CLI_TIMEOUT)).unwrap();
    ping(StreamOwned::new(connection, stream))
}

#[test]
fn tls_is_trusted_by_its_own_authority_only() {
    let pki = Pki::generate();
    let server = RedisServer::builder().tls(&pki, ClientCertificate::Ignored).start();
    assert_eq!(server.tls_url(), format!("rediss://127.0.0.1:{}", server.tls_port()));
    assert_eq!(handshake(&server, pki.ca(), None).unwrap(), pong());
    let refused = handshake(&server, pki.unrelated_ca(), None).unwrap_err();
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
}

#[test]
fn a_certificate_for_another_host_is_refused() {
    let pki = Pki::generate();
    let server = RedisServer::builder()
        .tls_identity(&pki, pki.misnamed(), ClientCertificate::Ignored)
        .start();
    let refused = handshake(&server, pki.ca(), None).unwrap_err();
    assert!(refused.to_string().contains("not valid for name"), "{refused}");
}

#[test]
fn a_client_certificate_can_be_demanded() {
    let pki = Pki::generate();
    let server = RedisServer::builder().tls(&pki, ClientCertificate::Required).start();
    drop(handshake(&server, pki.ca(), None).unwrap_err());
    let files = (pki.client().certificate_path().to_owned(), pki.client().clone());
    assert!(files.0.exists());
    server.restart();
    assert_eq!(handshake(&server, pki.ca(), Some(&files.1)).unwrap(), pong());
    drop(pki);
    assert!(!files.0.exists());
    server.restart();
}
