//! Starts real servers for tests: on free loopback ports, in folders of their own.
//!
//! This module has a single Redis or Valkey server. [`sentinel`] and [`cluster`] are sets of such
//! servers, on top of the same parts: [`binary`], [`port`], [`TestProcess`]. The invariant: a test
//! only ever talks to servers that it started itself. Every server has an administrator whose
//! random password proves that the right one answered, and no default port is ever used.
//!
//! ```
//! use leasehold_testkit::server::RedisServer;
//!
//! let server = RedisServer::start();
//! assert_eq!(server.cli(&["SET", "key", "value"]), "OK");
//! assert_eq!(server.command_calls("set"), 1);
//!
//! server.kill();
//! server.restart(); // same port, same folder; nothing was persisted
//! assert_eq!(server.cli(&["EXISTS", "key"]), "0");
//! ```

pub mod binary;
pub mod cluster;
pub mod port;
pub mod sentinel;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use self::binary::Binary;
use self::port::Reservation;
use crate::process::{TestProcess, describe};
pub use crate::resp::Reply;
use crate::resp::{encode, read_reply};
use crate::tls::{Identity, Pki};

/// The account of the launcher itself, on every server it starts.
const ADMIN: &str = "leasehold-testkit";

/// A server is up within 20 ms on an idle machine; this allows for a loaded one and a long AOF.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two looks at a starting server, which offers no event to wait for.
const START_POLL: Duration = Duration::from_millis(2);

/// A paused server must fail a [`RedisServer::cli`] call, not hang the test.
const CLI_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a start is repeated if another program took the port.
const START_ATTEMPTS: u32 = 5;

/// The distance from a cluster node's port to its bus port.
const BUS_OFFSET: u16 = 10_000;

pub(crate) const TEMP_PREFIX: &str = "leasehold-server-";

/// Whether a TLS server demands a certificate from its clients.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum ClientCertificate {
    /// Clients need none.
    #[default]
    Ignored,
    /// Clients must present one signed by the authority of the server.
    Required,
}

#[derive(Clone, Debug)]
struct TlsSettings {
    ca: String,
    identity: Identity,
    client_certificate: ClientCertificate,
}

impl TlsSettings {
    fn new(pki: &Pki, identity: &Identity, client_certificate: ClientCertificate) -> Self {
        let ca = pki.ca().certificate().to_owned();
        Self { ca, identity: identity.clone(), client_certificate }
    }
}

/// Options of a [`RedisServer`].
///
/// By default the server listens on one free loopback port in plain text. It has no password, and
/// keeps its data in memory only.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RedisServerBuilder {
    acl_users: Vec<String>,
    admin_password: Option<String>,
    appendonly: bool,
    args: Vec<String>,
    binary: Option<Binary>,
    config: Vec<String>,
    password: Option<String>,
    replica_of: Option<SocketAddr>,
    replica_auth: Option<String>,
    role: Role,
    tls: Option<TlsSettings>,
    unix_socket: bool,
}

/// The role of a server in a set.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Role {
    #[default]
    Alone,
    ClusterNode,
    Sentinel,
}

impl RedisServerBuilder {
    /// Adds an ACL user; `rule` is what follows `user` in a configuration file:
    /// `alice on >secret ~app:* +@all`. May be called again.
    pub fn acl_user(mut self, rule: impl Into<String>) -> Self {
        self.acl_users.push(rule.into());
        self
    }

    /// Keeps an append-only file in the server's folder, written through on every command. So a
    /// [`kill`](RedisServer::kill) and [`restart`](RedisServer::restart) keep all acknowledged
    /// data. For another policy add `appendfsync …` with [`config`](Self::config).
    pub fn appendonly(mut self) -> Self {
        self.appendonly = true;
        self
    }

    /// Adds a command-line argument, after the configuration file. May be called again.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Runs this program instead of what [`binary::find`] finds.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(Binary::at(path));
        self
    }

    /// Adds a line to the configuration file, after the launcher's lines. May be called again.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// Demands this password from the default user.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes the server a replica of `primary`.
    pub fn replica_of(mut self, primary: &RedisServer) -> Self {
        self.replica_of = Some(primary.addr());
        self.replica_auth = Some(primary.admin_password.clone());
        self
    }

    /// Opens a TLS port as well, with the server certificate of `pki`. The plain port stays open.
    pub fn tls(self, pki: &Pki, client_certificate: ClientCertificate) -> Self {
        self.tls_identity(pki, pki.server(), client_certificate)
    }

    /// As [`tls`](Self::tls), with a certificate that you choose, such as [`Pki::misnamed`].
    pub fn tls_identity(
        mut self,
        pki: &Pki,
        identity: &Identity,
        client_certificate: ClientCertificate,
    ) -> Self {
        self.tls = Some(TlsSettings::new(pki, identity, client_certificate));
        self
    }

    /// Listens on a Unix socket in the server's folder as well.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Starts the server and returns once it answers.
    ///
    /// # Panics
    ///
    /// When no server program is installed, or the server refuses its options or takes too long to
    /// answer. The message has a remedy, or the server's log.
    #[must_use]
    pub fn start(self) -> RedisServer {
        remove_abandoned_folders();
        let binary = self.binary.clone().unwrap_or_else(binary::find);
        let mut attempt = 1;
        loop {
            let server = RedisServer::prepare(self.clone(), binary.clone());
            match server.launch() {
                Ok(process) => {
                    *server.process() = Some(process);
                    return server;
                }
                Err(StartError::PortTaken) if attempt < START_ATTEMPTS => attempt += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[derive(Debug)]
enum StartError {
    PortTaken,
    Other(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PortTaken => write!(f, "another program took the server's port"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

/// A running Redis or Valkey server that belongs to a test.
///
/// Faults take `&self`, so a server can be shared while one task breaks it. Dropping kills the
/// server and removes its folder.
#[derive(Debug)]
pub struct RedisServer {
    admin_password: String,
    binary: Binary,
    /// Held for the cluster bus, which is ten thousand above the port.
    _bus: Option<Reservation>,
    dir: TempDir,
    options: RedisServerBuilder,
    port: Reservation,
    process: Mutex<Option<TestProcess>>,
    tls_port: Option<Reservation>,
}

impl RedisServer {
    /// Options for a server.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Starts a server without options.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// `127.0.0.1` and the port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port for plain text.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// `redis://127.0.0.1:port`, with the default user's password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.userinfo(), self.addr())
    }

    /// The same for another user.
    #[must_use]
    pub fn url_for(&self, user: &str, password: &str) -> String {
        format!("redis://{}:{}@{}", percent(user), percent(password), self.addr())
    }

    /// `rediss://127.0.0.1:port`, with the default user's password if there is one.
    ///
    /// # Panics
    ///
    /// When the server was started without TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}127.0.0.1:{}", self.userinfo(), self.tls_port())
    }

    /// The port for TLS.
    ///
    /// # Panics
    ///
    /// When the server was started without TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.as_ref().expect("the server was started with `tls`").port()
    }

    /// `redis+unix:///path`, with the default user's password if there is one.
    ///
    /// # Panics
    ///
    /// When the server was started without a Unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        let path = self.unix_path();
        let query = match &self.options.password {
            Some(password) => format!("?pass={}", percent(password)),
            None => String::new(),
        };
        format!("redis+unix://{}{query}", path.display())
    }

    /// The path of the Unix socket.
    ///
    /// # Panics
    ///
    /// When the server was started without a Unix socket.
    #[must_use]
    pub fn unix_path(&self) -> PathBuf {
        assert!(self.options.unix_socket, "the server was started without `unix_socket`");
        self.dir.path().join("server.sock")
    }

    /// The server's folder: `server.conf`, `server.log` and persisted data.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server has logged so far, all starts together.
    ///
    /// # Panics
    ///
    /// When the log cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).expect("the log is in a folder of ours")
    }

    /// The process id of the server.
    ///
    /// # Panics
    ///
    /// When the server was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.with_process(|process| process.pid())
    }

    /// Stops the server (`SIGSTOP`), and returns once it stands still. Its sockets stay open.
    ///
    /// # Panics
    ///
    /// When the server was killed.
    pub fn pause(&self) {
        self.with_process(|process| process.pause());
    }

    /// Lets a paused server go on (`SIGCONT`).
    ///
    /// # Panics
    ///
    /// When the server was killed.
    pub fn resume(&self) {
        self.with_process(|process| process.resume());
    }

    /// Kills the server (`SIGKILL`) and waits until it is gone. Once killed, that is all.
    ///
    /// # Panics
    ///
    /// When the server cannot be signalled.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Ends the server in good order (`SIGTERM`) and waits until it is gone.
    ///
    /// # Panics
    ///
    /// When the server cannot be signalled.
    pub fn terminate(&self) {
        if let Some(mut process) = self.process().take() {
            process.terminate();
        }
    }

    /// Kills the server if it still runs and starts it again with the same port, folder and
    /// configuration file; returns once it answers.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    pub fn restart(&self) {
        self.kill();
        match self.launch() {
            Ok(process) => *self.process() = Some(process),
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs one command as an administrator and returns the reply as text, one line per element.
    ///
    /// Each call has its own connection, so it leaves `AUTH` in the server's statistics too.
    ///
    /// # Panics
    ///
    /// When the server takes longer than five seconds to answer, or answers with an error.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> String {
        match self.try_cli(args) {
            Ok(Reply::Error(error)) => panic!("{} answered: {error}", args.join(" ")),
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("cannot run {}: {error}", args.join(" ")),
        }
    }

    /// Runs one command as an administrator; an error from the server is a [`Reply`].
    ///
    /// # Errors
    ///
    /// When the server takes longer than five seconds to answer, or can't be reached.
    pub fn try_cli(&self, args: &[&str]) -> io::Result<Reply> {
        self.connect()?.call(args)
    }

    /// Shows what another authority signed, believes that one alone, and cuts all connections of
    /// the default user. Redis 6.2 changes one setting in a call, so the files change, and the
    /// server reads all of them again.
    ///
    /// # Panics
    ///
    /// As [`cli`](Self::cli), and for a server without TLS.
    pub fn change_authority(&self, pki: &Pki) {
        let of = |setting: &str| {
            let answer = self.cli(&["CONFIG", "GET", setting]);
            PathBuf::from(answer.lines().last().unwrap_or_default())
        };
        let own = pki.server();
        for (from, to) in [
            (pki.ca().certificate_path(), "tls-ca-cert-file"),
            (own.certificate_path(), "tls-cert-file"),
            (own.key_path(), "tls-key-file"),
        ] {
            fs::copy(from, of(to)).unwrap_or_else(|error| panic!("can't replace {to}: {error}"));
        }
        let certificate = of("tls-cert-file").display().to_string();
        drop(self.cli(&["CONFIG", "SET", "tls-cert-file", &certificate]));
        drop(self.cli(&["CLIENT", "KILL", "USER", "default"]));
    }

    /// The fields of a section of `INFO`.
    ///
    /// # Panics
    ///
    /// As [`cli`](Self::cli).
    #[must_use]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        let text = self.cli(&["INFO", section]);
        text.lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect()
    }

    /// How often a command was called since the start or `CONFIG RESETSTAT`, scripts included.
    /// Subcommands are written `config|get`, all in lower case.
    ///
    /// # Panics
    ///
    /// As [`cli`](Self::cli).
    #[must_use]
    pub fn command_calls(&self, command: &str) -> u64 {
        let stats = self.info("commandstats");
        let calls = stats
            .get(&format!("cmdstat_{command}"))
            .and_then(|fields| fields.strip_prefix("calls="))
            .and_then(|rest| rest.split(',').next())
            .map(str::parse);
        calls.map_or(0, |calls| calls.expect("commandstats count in digits"))
    }

    /// Major and minor version of the server. Valkey counts its own, from 7.2 on.
    ///
    /// # Panics
    ///
    /// As [`cli`](Self::cli).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        let info = self.info("server");
        let text = info.get("valkey_version").or_else(|| info.get("redis_version"));
        let mut parts = text.into_iter().flat_map(|text| text.split('.')).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => panic!("the server does not tell its version: {info:?}"),
        }
    }

    fn prepare(options: RedisServerBuilder, binary: Binary) -> Self {
        // The process id is for `remove_abandoned_folders`.
        let dir = tempfile::Builder::new()
            .prefix(&format!("{TEMP_PREFIX}{}-", std::process::id()))
            .tempdir()
            .expect("the temporary folder is writable");
        let tls = options.tls.is_some();
        // A node's bus belongs to the port that other nodes use.
        let (port, tls_port, bus) = match options.role {
            Role::ClusterNode => {
                let (port, bus) = Reservation::pair(BUS_OFFSET);
                if tls {
                    (Reservation::new(), Some(port), Some(bus))
                } else {
                    (port, None, Some(bus))
                }
            }
            Role::Alone | Role::Sentinel => (Reservation::new(), tls.then(Reservation::new), None),
        };
        let server = Self {
            admin_password: options.admin_password.clone().unwrap_or_else(random_password),
            binary,
            _bus: bus,
            dir,
            port,
            process: Mutex::new(None),
            tls_port,
            options,
        };
        fs::write(server.config_path(), server.configuration())
            .expect("the temporary folder is writable");
        server
    }

    fn configuration(&self) -> String {
        let RedisServerBuilder {
            acl_users,
            admin_password: _,
            appendonly,
            args: _,
            binary: _,
            config,
            password,
            replica_of,
            replica_auth,
            role,
            tls,
            unix_socket,
        } = &self.options;
        let dir = self.dir.path();
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", self.port()),
            format!("dir {}", dir.display()),
            "save \"\"".to_owned(),
            format!("appendonly {}", if *appendonly { "yes" } else { "no" }),
            "appendfsync always".to_owned(),
            // By default a primary lets its first replica wait five seconds for a second one.
            "repl-diskless-sync-delay 0".to_owned(),
            format!("user {ADMIN} on >{} ~* &* +@all", self.admin_password),
        ];
        if *role == Role::ClusterNode {
            lines.extend(["cluster-enabled yes".into(), "cluster-config-file nodes.conf".into()]);
        }
        lines.extend(acl_users.iter().map(|rule| format!("user {rule}")));
        if let Some(password) = password {
            lines.push(format!("requirepass {password}"));
        }
        if let Some(primary) = replica_of {
            lines.push(format!("replicaof {} {}", primary.ip(), primary.port()));
        }
        if let Some(password) = replica_auth {
            lines.extend([format!("masteruser {ADMIN}"), format!("masterauth {password}")]);
        }
        if *unix_socket {
            lines.push(format!("unixsocket {}", self.unix_path().display()));
        }
        if let Some(TlsSettings { ca, identity, client_certificate }) = tls {
            // Copies, because the server may be restarted after the `Pki` is gone.
            for (option, text) in [
                ("tls-ca-cert-file", ca.as_str()),
                ("tls-cert-file", identity.certificate()),
                ("tls-key-file", identity.key()),
            ] {
                let path = dir.join(format!("{option}.pem"));
                fs::write(&path, text).expect("the temporary folder is writable");
                lines.push(format!("{option} {}", path.display()));
            }
            let demand = match client_certificate {
                ClientCertificate::Ignored => "no",
                ClientCertificate::Required => "yes",
            };
            lines.push(format!("tls-port {}", self.tls_port()));
            lines.push(format!("tls-auth-clients {demand}"));
        }
        lines.extend(config.iter().cloned());
        lines.join("\n") + "\n"
    }

    /// Starts the process and waits until it answers.
    fn launch(&self) -> Result<TestProcess, StartError> {
        let other = |message: String| StartError::Other(message);
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.log_path())
            .map_err(|error| other(format!("cannot write the server's log: {error}")))?;
        let errors = log
            .try_clone()
            .map_err(|error| other(format!("cannot write the server's log: {error}")))?;
        let logged_before = self.log().len();
        let mut command: Command = self.binary.command();
        command
            .arg(self.config_path())
            .args(&self.options.args)
            .args((self.options.role == Role::Sentinel).then_some("--sentinel"))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let mut process = TestProcess::spawn(command)
            .map_err(|error| other(format!("cannot run {}: {error}", self.binary)))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if self.answers() {
                return Ok(process);
            }
            let problem = match process.exited() {
                Some(status) => format!("ended with {}", describe(status)),
                None if Instant::now() > deadline => format!("gave no answer in {START_TIMEOUT:?}"),
                None => {
                    thread::sleep(START_POLL);
                    continue;
                }
            };
            let log = self.log();
            let log = log.get(logged_before..).unwrap_or_default();
            if log.contains("Address already in use") {
                return Err(StartError::PortTaken);
            }
            return Err(other(format!(
                "{} {problem}; its configuration:\n{}\nits log:\n{log}",
                self.binary,
                self.configuration(),
            )));
        }
    }

    /// Whether this launcher's server is ready: only that one knows the administrator.
    fn answers(&self) -> bool {
        let replies = self.connect().and_then(|mut connection| connection.call(&["PING"]));
        matches!(replies, Ok(Reply::Status(pong)) if pong == "PONG")
            && (!self.options.unix_socket || UnixStream::connect(self.unix_path()).is_ok())
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.addr(), CLI_TIMEOUT)?;
        stream.set_read_timeout(Some(CLI_TIMEOUT))?;
        stream.set_write_timeout(Some(CLI_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection(BufReader::new(stream));
        match connection.call(&["AUTH", ADMIN, &self.admin_password])? {
            Reply::Status(_) => Ok(connection),
            reply => Err(io::Error::other(format!("AUTH was answered {reply}"))),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<TestProcess>> {
        // A test that panicked half-way leaves a process that can still be killed.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_process<T>(&self, act: impl FnOnce(&TestProcess) -> T) -> T {
        act(self.process().as_ref().expect("the server was killed and not restarted"))
    }

    fn userinfo(&self) -> String {
        self.options
            .password
            .as_ref()
            .map_or_else(String::new, |password| format!(":{}@", percent(password)))
    }

    fn config_path(&self) -> PathBuf {
        self.dir.path().join("server.conf")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Killed before the folder is removed: a living server would write into it again.
        drop(self.process().take());
    }
}

fn random_password() -> String {
    (0..32).map(|_| fastrand::alphanumeric()).collect()
}

/// A blocking RESP2 connection for one administrator's command at a time.
struct Connection<S = TcpStream>(BufReader<S>);

impl<S: Read + Write> Connection<S> {
    fn call(&mut self, args: &[&str]) -> io::Result<Reply> {
        self.0.get_mut().write_all(&encode(args))?;
        read_reply(&mut self.0)
    }
}

/// One server without options for the whole test process, started on first use.
///
/// Tests that share it must use keys of their own and must not break it. Under a runner that gives
/// each test a process, each gets a server.
///
/// # Panics
///
/// As [`RedisServerBuilder::start`], in the first caller.
#[must_use]
pub fn shared() -> &'static RedisServer {
    static SHARED: LazyLock<RedisServer> = LazyLock::new(|| {
        let server = RedisServer::start();
        remove_at_exit(server.dir());
        server
    });
    &SHARED
}

/// Statics are not dropped. The kernel ends the server with the process, but its folder must be
/// removed here.
pub(crate) fn remove_at_exit(folder: &Path) {
    static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    extern "C" fn remove() {
        if let Ok(mut folders) = FOLDERS.lock() {
            for folder in folders.drain(..) {
                drop(fs::remove_dir_all(folder));
            }
        }
    }

    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    if folders.is_empty() {
        // SAFETY: `remove` is a plain function that does not unwind, and atexit has no further
        // requirements.
        let status = unsafe { libc::atexit(remove) };
        assert_eq!(status, 0, "the C library has room for an exit handler");
    }
    folders.push(folder.to_owned());
}

/// Removes the folders of interrupted test processes, whose servers have died with them.
pub(crate) fn remove_abandoned_folders() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix(TEMP_PREFIX))
                .and_then(|rest| rest.split('-').next())
                .and_then(|pid| pid.parse().ok())
                .and_then(rustix::process::Pid::from_raw);
            let gone = pid.is_some_and(|pid| {
                rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
            });
            if gone {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    });
}

/// Percent-encodes all characters that a URL's user, password or query restricts.
fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string can be written to");
        }
        encoded
    })
}

#[cfg(test)]
mod tests;
