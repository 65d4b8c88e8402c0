//! Starts private database servers for tests of fenced transactions.
//!
//! [`PostgreSql`] listens on a Unix socket and on loopback, [`MariaDb`] on a socket only. A Galera
//! pair talks over loopback. PostgreSQL refuses to run as root; it then runs as `nobody`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{TestProcess, describe};
use crate::server::port::Reservation;
use crate::server::{TEMP_PREFIX, remove_abandoned_folders, remove_at_exit};
use crate::tls::Identity;

/// The variable with the folder of `initdb` and `postgres`.
pub const POSTGRESQL_VARIABLE: &str = "LEASEHOLD_POSTGRESQL_BIN";
/// The variable with the path of `pgbouncer`.
pub const PGBOUNCER_VARIABLE: &str = "LEASEHOLD_PGBOUNCER";
/// The variable with the path of `mariadbd`; `mariadb-install-db` must be in the PATH or in
/// `/usr/bin`.
pub const MARIADB_VARIABLE: &str = "LEASEHOLD_MARIADB_SERVER";
/// The variable with the path of Galera's `libgalera_smm.so`.
pub const GALERA_VARIABLE: &str = "LEASEHOLD_GALERA_LIBRARY";

const NOBODY: u32 = 65_534;

const START_TIMEOUT: Duration = Duration::from_secs(60);

const START_POLL: Duration = Duration::from_millis(10);

/// A PostgreSQL server with a superuser `leasehold` that needs no password. It listens on a socket
/// in its folder and on a free loopback port.
#[derive(Debug)]
pub struct PostgreSql {
    // Dropped before the folder: a living server would write into it again.
    process: TestProcess,
    dir: TempDir,
    port: Reservation,
    settings: Vec<String>,
}

impl PostgreSql {
    /// Makes a data folder and starts a server on it.
    ///
    /// # Panics
    ///
    /// When the programs are missing or the server does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with settings such as `fsync=on`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        let dir = own_folder();
        let mut initdb = postgresql("initdb", &dir);
        initdb.args(["--auth=trust", "--username=leasehold", "--encoding=UTF8", "--locale=C"]);
        run(initdb.arg("--no-sync").arg("--pgdata").arg(data_of(&dir)));
        Self::on(dir, settings.iter().map(|setting| (*setting).to_owned()).collect())
    }

    /// The same with TLS and this certificate; connections without it are accepted too.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with_tls(identity: &Identity) -> Self {
        let folder = own_folder();
        let copied = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("the temporary folder is writable");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
                .expect("the file is ours");
            if rustix::process::geteuid().is_root() {
                chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may give a file away");
            }
            path.display().to_string()
        };
        let certificate =
            format!("ssl_cert_file={}", copied("certificate", identity.certificate()));
        let key = format!("ssl_key_file={}", copied("key", identity.key()));
        // The server reads them when it starts.
        Self::start_with(&["ssl=on", &certificate, &key])
    }

    /// Starts a standby that follows this server.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn standby(&self) -> Self {
        let dir = own_folder();
        self.copy_to(&dir);
        Self::on(dir, self.settings.clone())
    }

    /// Stops this server, and starts it again as a standby that follows another.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn follow(&mut self, primary: &Self) {
        self.stop();
        fs::remove_dir_all(data_of(&self.dir)).expect("the folder is ours");
        primary.copy_to(&self.dir);
        self.process = Self::launch(&self.dir, &self.port, &self.settings);
    }

    fn copy_to(&self, dir: &TempDir) {
        let mut copy = postgresql("pg_basebackup", dir);
        copy.args([
            "--username=leasehold",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        ]);
        copy.arg("--host").arg(self.socket_dir()).arg("--port").arg(self.port().to_string());
        run(copy.arg("--pgdata").arg(data_of(dir)));
    }

    fn on(dir: TempDir, settings: Vec<String>) -> Self {
        let port = Reservation::new();
        let process = Self::launch(&dir, &port, &settings);
        Self { process, dir, port, settings }
    }

    fn launch(dir: &TempDir, port: &Reservation, settings: &[String]) -> TestProcess {
        let data = data_of(dir);
        let mut server = postgresql("postgres", dir);
        server
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .arg("-p")
            .arg(port.port().to_string());
        let usual = [
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "shared_buffers=8MB",
            "max_connections=100",
        ];
        for setting in usual.into_iter().chain(settings.iter().map(String::as_str)) {
            server.args(["-c", setting]);
        }
        let state = data.join("postmaster.pid");
        let ready = || {
            fs::read_to_string(&state)
                .is_ok_and(|state| state.contains("ready") || state.contains("standby"))
        };
        launch(server, dir.path(), ready)
    }

    /// The folder with the server's socket: the `host` of a connection.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The port, on loopback and in the name of the socket.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// A URL through the socket.
    #[must_use]
    pub fn url(&self) -> String {
        let folder = self.dir.path().to_string_lossy().replace('/', "%2F");
        format!("postgres://leasehold@{folder}:{}/postgres", self.port())
    }

    /// A URL through loopback.
    #[must_use]
    pub fn tcp_url(&self) -> String {
        format!("postgres://leasehold@127.0.0.1:{}/postgres", self.port())
    }

    /// A URL through loopback for another user.
    #[must_use]
    pub fn tcp_url_of(&self, user: &str) -> String {
        self.tcp_url().replace("leasehold@", &format!("{user}@"))
    }

    /// Carries statements out with `psql`, as the superuser. Returns the values that they select.
    ///
    /// # Panics
    ///
    /// When one of them fails.
    pub fn sql(&self, statements: &str) -> String {
        run(&mut self.psql(statements))
    }

    /// The same. `None` if one of them fails, as while the server recovers.
    #[must_use]
    pub fn try_sql(&self, statements: &str) -> Option<String> {
        let output = self.psql(statements).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        output.status.success().then_some(said)
    }

    fn psql(&self, statements: &str) -> Command {
        let mut psql = postgresql("psql", &self.dir);
        psql.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-U", "leasehold", "-h"]);
        psql.arg(self.socket_dir()).arg("-p").arg(self.port().to_string());
        psql.args(["-d", "postgres", "-c", statements]);
        psql
    }

    /// Puts a line before all others in `pg_hba.conf`. It holds for connections that are made a
    /// moment later.
    ///
    /// # Panics
    ///
    /// When the file can't be changed.
    pub fn admit(&self, line: &str) {
        let path = data_of(&self.dir).join("pg_hba.conf");
        let rules = fs::read_to_string(&path).expect("the server has the file");
        fs::write(&path, format!("{line}\n{rules}")).expect("the file is ours");
        self.sql("SELECT pg_reload_conf()");
    }

    /// Changes a setting while the server runs.
    ///
    /// # Panics
    ///
    /// When it can't be changed.
    pub fn set(&self, setting: &str, value: &str) {
        self.sql(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
        self.sql("SELECT pg_reload_conf()");
    }

    /// The folder of the server's programs, such as `psql`.
    #[must_use]
    pub fn programs() -> PathBuf {
        postgresql_bin()
    }

    /// What the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    /// Stops the server and starts it again, as an operator does.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn restart(&mut self) {
        self.process.signal(Signal::INT);
        self.process.wait();
        self.process = Self::launch(&self.dir, &self.port, &self.settings);
    }

    /// Stops the server without a checkpoint and starts it again: it recovers as after a crash.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn crash(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.wait();
        self.process = Self::launch(&self.dir, &self.port, &self.settings);
    }

    /// Stops the server for good.
    pub fn stop(&mut self) {
        self.process.signal(Signal::QUIT);
        self.process.wait();
    }

    /// The server's process.
    #[must_use]
    pub const fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Makes a standby the primary.
    ///
    /// # Panics
    ///
    /// When it can't be one.
    pub fn promote(&self) {
        run(postgresql("pg_ctl", &self.dir)
            .args(["promote", "--wait", "--pgdata"])
            .arg(data_of(&self.dir)));
    }

    /// Lets the folder of a server in a `static` be removed when the process exits.
    pub fn remove_at_exit(&self) {
        remove_at_exit(self.dir.path());
    }
}

/// A PgBouncer before a server.
#[derive(Debug)]
pub struct PgBouncer {
    // Dropped before the folder: a living pooler would write into it again.
    process: TestProcess,
    dir: TempDir,
    port: Reservation,
}

impl PgBouncer {
    /// Starts a pooler in this `pool_mode`, such as `transaction`.
    ///
    /// # Panics
    ///
    /// When the program is missing or does not start.
    #[must_use]
    pub fn start(server: &PostgreSql, pool_mode: &str) -> Self {
        let (dir, port) = (own_folder(), Reservation::new());
        let settings = format!(
            "[databases]\npostgres = host={} port={} dbname=postgres user=leasehold\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {pool_mode}\nmax_client_conn = 1000\ndefault_pool_size = 20\n",
            server.socket_dir().display(),
            server.port(),
            port.port(),
        );
        fs::write(dir.path().join("pgbouncer.ini"), settings)
            .expect("the temporary folder is writable");
        let process = Self::launch(&dir, port.port());
        Self { process, dir, port }
    }

    fn launch(dir: &TempDir, port: u16) -> TestProcess {
        let place = ["/usr/sbin/pgbouncer"];
        let mut command =
            Command::new(program(PGBOUNCER_VARIABLE, "pgbouncer", &place, "pgbouncer"));
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.current_dir(dir.path()).arg("pgbouncer.ini").stdin(Stdio::null());
        let address = (std::net::Ipv4Addr::LOCALHOST, port);
        let ready = || std::net::TcpStream::connect(address).is_ok();
        launch(command, dir.path(), ready)
    }

    /// Kills the pooler and starts it again.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn restart(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
        self.process = Self::launch(&self.dir, self.port.port());
    }

    /// A URL through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://leasehold@127.0.0.1:{}/postgres", self.port.port())
    }

    /// Lets the folder of a pooler in a `static` be removed when the process exits.
    pub fn remove_at_exit(&self) {
        remove_at_exit(self.dir.path());
    }
}

fn data_of(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}

/// A folder that the server's user may write to.
fn own_folder() -> TempDir {
    let dir = folder();
    if rustix::process::geteuid().is_root() {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may give a folder away");
    }
    dir
}

/// A program of PostgreSQL, which refuses to run as root.
fn postgresql(program: &str, dir: &TempDir) -> Command {
    let mut command = Command::new(postgresql_bin().join(program));
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir(dir.path()).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// A MariaDB server with a superuser `root` that needs no password.
#[derive(Debug)]
pub struct MariaDb {
    // Dropped before the folder: a living server would write into it again.
    _process: TestProcess,
    dir: TempDir,
}

impl MariaDb {
    /// Makes a data folder and starts a server on it.
    ///
    /// # Panics
    ///
    /// When the programs are missing or the server does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[], None)
    }

    /// The first of two nodes of a Galera cluster; [`second_node`](Self::second_node) is the other.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start), and without Galera's library.
    #[must_use]
    pub fn first_node(port: &GaleraPort) -> Self {
        let options = galera(port, "gcomm://");
        Self::start_with(&[options, vec!["--wsrep-new-cluster".to_owned()]].concat(), None)
    }

    /// Joins the cluster of a first node that is still empty, so that no program for transfers is
    /// needed. `position` is the first node's `wsrep_cluster_state_uuid`, a colon, and its
    /// `wsrep_last_committed`.
    ///
    /// # Panics
    ///
    /// As [`first_node`](Self::first_node).
    #[must_use]
    pub fn second_node(port: &GaleraPort, first: &GaleraPort, position: &str) -> Self {
        let options = galera(port, &format!("gcomm://127.0.0.1:{}", first.0));
        let start = vec![format!("--wsrep-start-position={position}")];
        let (group, last) = position.split_once(':').expect("a position has a colon");
        let state = format!("version: 2.1\nuuid: {group}\nseqno: {last}\nsafe_to_bootstrap: 0\n");
        Self::start_with(&[options, start].concat(), Some(&state))
    }

    fn start_with(options: &[String], galera_state: Option<&str>) -> Self {
        let server =
            program(MARIADB_VARIABLE, "mariadbd", &["/usr/sbin/mariadbd"], "mariadb-server-core");
        let install = program(
            "LEASEHOLD_MARIADB_INSTALL_DB",
            "mariadb-install-db",
            &["/usr/bin/mariadb-install-db"],
            "mariadb-server-core",
        );
        let dir = folder();
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("the temporary folder is writable");
        let datadir = format!("--datadir={}", data.display());
        let user = rustix::process::geteuid().is_root().then_some("--user=root");
        let mut make = Command::new(install);
        make.args(["--no-defaults", &datadir, "--auth-root-authentication-method=normal"]);
        // A starting server removes all temporary tables that it finds, including other servers'.
        make.env("TMPDIR", dir.path());
        run(make.arg("--skip-test-db").args(user).stdin(Stdio::null()));
        if let Some(state) = galera_state {
            fs::write(data.join("grastate.dat"), state).expect("the data folder is writable");
        }
        let socket = dir.path().join("socket");
        let mut command = Command::new(server);
        command.args(["--no-defaults", &datadir, "--skip-networking"]).args(user);
        command.arg(format!("--socket={}", socket.display()));
        command.args(["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"]);
        command.args(options).stdin(Stdio::null()).env("TMPDIR", dir.path());
        let ready = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
        let process = launch(command, dir.path(), ready);
        Self { _process: process, dir }
    }

    /// The server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Lets the folder of a server in a `static` be removed when the process exits.
    pub fn remove_at_exit(&self) {
        remove_at_exit(self.dir.path());
    }
}

/// Where a node of a Galera cluster listens for the others, on loopback.
#[derive(Debug)]
pub struct GaleraPort(u16);

impl GaleraPort {
    /// A port that was free a moment ago.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        // Galera can't bind the port while the reservation holds it.
        Self(Reservation::new().port())
    }
}

fn galera(port: &GaleraPort, cluster: &str) -> Vec<String> {
    let library = program(
        GALERA_VARIABLE,
        "libgalera_smm.so",
        &["/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"],
        "galera-4",
    );
    let receive = GaleraPort::new();
    let provider = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{};ist.recv_addr=127.0.0.1:{};gcache.size=8M",
        port.0, receive.0
    );
    vec![
        "--wsrep-on=1".to_owned(),
        format!("--wsrep-provider={}", library.display()),
        format!("--wsrep-cluster-address={cluster}"),
        "--wsrep-node-address=127.0.0.1".to_owned(),
        format!("--wsrep-provider-options={provider}"),
        "--wsrep-sst-method=skip".to_owned(),
        "--binlog-format=ROW".to_owned(),
        "--innodb-autoinc-lock-mode=2".to_owned(),
    ]
}

fn folder() -> TempDir {
    remove_abandoned_folders();
    tempfile::Builder::new()
        .prefix(&format!("{TEMP_PREFIX}{}-", std::process::id()))
        .tempdir()
        .expect("the temporary folder is writable")
}

/// The program that the variable names, or the one in PATH, or the first of `places` that exists.
fn program(variable: &str, name: &str, places: &[&str], package: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(variable) {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    in_path.chain(places.iter().map(PathBuf::from)).find(|place| place.is_file()).unwrap_or_else(
        || panic!("no {name}: install it (Debian, Ubuntu: {package}) or name it in {variable}"),
    )
}

/// Debian keeps a folder for each version.
fn postgresql_bin() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin/postgres")).collect();
    places.sort();
    let places: Vec<&str> = places.iter().rev().filter_map(|place| place.to_str()).collect();
    if let Some(folder) = std::env::var_os(POSTGRESQL_VARIABLE) {
        return folder.into();
    }
    let postgres = program(POSTGRESQL_VARIABLE, "postgres", &places, "postgresql-15");
    // The other programs may be beside the target of a link only.
    let postgres = fs::canonicalize(&postgres).unwrap_or(postgres);
    postgres.parent().map(Path::to_owned).unwrap_or_default()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}: {}{}",
        describe(output.status),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn launch(mut command: Command, dir: &Path, ready: impl Fn() -> bool) -> TestProcess {
    let path = dir.join("server.log");
    let log = fs::File::create(&path).expect("the temporary folder is writable");
    let errors = log.try_clone().expect("a file can be opened twice");
    command.stdout(log).stderr(errors);
    let name = command.get_program().to_owned();
    let mut process = TestProcess::spawn(command)
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", name.display()));
    let deadline = Instant::now() + START_TIMEOUT;
    while !ready() {
        let problem = match process.exited() {
            Some(status) => format!("ended with {}", describe(status)),
            None if Instant::now() > deadline => format!("was not ready in {START_TIMEOUT:?}"),
            None => {
                thread::sleep(START_POLL);
                continue;
            }
        };
        let log = fs::read_to_string(&path).unwrap_or_default();
        panic!("{} {problem}; its log:\n{log}", name.display());
    }
    process
}
