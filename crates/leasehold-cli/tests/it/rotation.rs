//! Passwords, authorities and certificates that change while commands hold a lock, wait for it, and
//! lead.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use leasehold_testkit::server::{ClientCertificate, RedisServer};
use leasehold_testkit::tls::Pki;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Site, lock, until};

const TTL: Duration = Duration::from_secs(6);

/// Between two tries of another contender.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// For how long server and file say different things.
const GAP: Duration = Duration::from_millis(500);

/// Has a holder, a waiter and a leader live through a change, as a judge sees who logs in
/// otherwise.
fn live_through(site: &Site, options: &str, judge: &Site, change: impl FnOnce()) {
    let hold = "echo $LEASEHOLD_FENCE; while [ ! -e end ]; do sleep 0.05; done; echo over";
    let holder = site.start_script(&format!("k --ttl 6s{options}"), hold);
    let elect = format!("elect post --ttl 6s{options} -- sh -c");
    let lead =
        "trap 'echo ended; exit 3' TERM; echo $LEASEHOLD_FENCE; while :; do sleep 0.05; done";
    let mut leader = site.start(elect.split(' ').chain([lead]));
    leader.line();
    let mut waiter = site.start(format!("run k --ttl 6s{options} -- echo in").split(' '));
    let message = waiter.message();
    assert!(message.contains("waiting: \"k\""), "{message}");
    let held = || ["k", "post"].map(|name| lock(judge, name)["holders"][0]["fence"].clone());
    let before = held();
    assert!(before.iter().all(|fence| !fence.is_null()), "{before:?}");
    change();
    // All leases of before the change would be over by then.
    for _ in 0..TTL.saturating_mul(2).as_millis() / LOOK_EVERY.as_millis() {
        for name in ["k", "post"] {
            // A busy machine may leave a contender without an answer.
            until("a contender is answered", || {
                let tried = judge.line(&format!("run -n {name} -- true"));
                tried.status.code() != Some(69) && !tried.expect(75).stderr.is_empty()
            });
        }
        sleep(LOOK_EVERY);
    }
    assert_eq!(held(), before, "the same leases");
    for one in [&mut waiter, &mut leader] {
        assert_eq!(one.exited(), None, "{}", one.stderr());
    }
    // A quorum keeps no line.
    let in_line = !judge.store().starts_with("quorum:");
    let waiting = || lock(judge, "k")["waiters"].as_array().is_some_and(|all| !all.is_empty());
    until("the waiter waits still", || !in_line || waiting());
    fs::write(site.path("end"), "").unwrap();
    assert_eq!(holder.finish().expect(0).stdout, "over\n");
    let waited = waiter.finish().expect(0);
    assert_eq!(waited.stdout, "in\n", "{waited:?}");
    leader.process().signal(Signal::TERM);
    let led = leader.finish().expect(3);
    assert_eq!(led.stdout, "ended\n", "{led:?}");
    assert!(!led.stderr.contains("campaigning"), "{led:?}");
}

fn admit(server: &RedisServer, user: &str, password: &str) {
    let new = format!(">{password}");
    let rule = ["ACL", "SETUSER", user, "on", "resetpass", &new, "~*", "&*", "+@all"];
    assert_eq!(server.cli(&rule), "OK");
}

fn cut(server: &RedisServer) {
    drop(server.cli(&["CLIENT", "KILL", "USER", "app"]));
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Changes the password of all servers twice: before their file says so, and after.
fn change_passwords(servers: &[&RedisServer], file: &Path) {
    for (password, file_first) in [("two", false), ("three", true)] {
        if file_first {
            write(file, password);
            servers.iter().for_each(|server| cut(server));
            sleep(GAP);
        }
        for server in servers {
            admit(server, "app", password);
            cut(server);
        }
        if !file_first {
            sleep(GAP);
            write(file, password);
        }
        sleep(GAP * 3);
    }
}

struct Cell {
    files: TempDir,
}

impl Cell {
    /// Lets the user and the judge in.
    fn new(servers: &[&RedisServer]) -> Self {
        let files = tempfile::tempdir().unwrap();
        write(&files.path().join("password"), "one\n");
        for server in servers {
            admit(server, "app", "one");
            admit(server, "judge", "jj");
        }
        Self { files }
    }

    fn password(&self) -> std::path::PathBuf {
        self.files.path().join("password")
    }

    /// A URL's setting.
    fn setting(&self) -> String {
        format!("password_file={}", self.password().display())
    }
}

#[test]
fn leases_outlive_a_change_of_the_password_on_a_server() {
    let server = RedisServer::start();
    let cell = Cell::new(&[&server]);
    let judge = Site::at(server.url_for("judge", "jj"));
    let site = Site::at(format!("redis://app@{}?{}", server.addr(), cell.setting()));
    live_through(&site, "", &judge, || change_passwords(&[&server], &cell.password()));
}

#[test]
fn leases_outlive_a_change_of_the_password_in_the_file_that_was_typed() {
    let server = RedisServer::start();
    let cell = Cell::new(&[&server]);
    let judge = Site::at(server.url_for("judge", "jj"));
    let site = Site::at(format!("redis://app@{}", server.addr()));
    let options = format!(" --password-file {}", cell.password().display());
    live_through(&site, &options, &judge, || change_passwords(&[&server], &cell.password()));
}

#[test]
fn leases_outlive_a_change_of_the_passwords_of_a_primary_and_of_its_sentinels() {
    let set = SentinelSet::builder().replicas(1).start();
    let all: Vec<_> = set.servers().iter().chain(set.sentinels()).collect();
    let cell = Cell::new(&all);
    let hosts: Vec<_> = set.sentinels().iter().map(|one| one.addr().to_string()).collect();
    let at = |login: &str, settings: &str| {
        Site::at(format!("redis+sentinel://{login}@{}/mymaster?{settings}", hosts.join(",")))
    };
    let judge = at("judge:jj", "sentinel_user=judge&sentinel_password=jj");
    let own = cell.setting();
    let site = at("app", &format!("{own}&sentinel_user=app&sentinel_{own}"));
    live_through(&site, "", &judge, || change_passwords(&all, &cell.password()));
}

#[test]
fn leases_outlive_a_change_of_the_password_of_a_cluster() {
    let cluster = Cluster::builder().replicas(0).start();
    let nodes: Vec<_> = cluster.nodes().iter().collect();
    let cell = Cell::new(&nodes);
    let hosts: Vec<_> = nodes.iter().map(|one| one.addr().to_string()).collect();
    let hosts = hosts.join(",");
    let judge = Site::at(format!("redis+cluster://judge:jj@{hosts}"));
    let site = Site::at(format!("redis+cluster://app@{hosts}?{}", cell.setting()));
    live_through(&site, "", &judge, || change_passwords(&nodes, &cell.password()));
}

#[test]
fn leases_outlive_a_change_of_the_password_of_a_quorum() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let nodes: Vec<_> = servers.iter().collect();
    let cell = Cell::new(&nodes);
    let at = |login: &str, settings: &str| {
        let urls = nodes.iter().map(|node| format!("redis://{login}@{}{settings}", node.addr()));
        Site::at(format!(
            "quorum:{},keep_leases=yes,node_timeout=2s",
            urls.collect::<Vec<_>>().join(",")
        ))
    };
    let (judge, site) = (at("judge:jj", ""), at("app", &format!("?{}", cell.setting())));
    live_through(&site, "", &judge, || change_passwords(&nodes, &cell.password()));
}

/// What commands know of certificates.
struct Trust {
    files: TempDir,
}

impl Trust {
    fn new(pki: &Pki) -> Self {
        let trust = Self { files: tempfile::tempdir().unwrap() };
        trust.put(pki);
        trust
    }

    fn put(&self, pki: &Pki) {
        let to = |name: &str| self.files.path().join(name);
        fs::copy(pki.ca().certificate_path(), to("ca.pem")).unwrap();
        fs::copy(pki.client().certificate_path(), to("own.pem")).unwrap();
        fs::copy(pki.client().key_path(), to("own.key")).unwrap();
    }

    /// A URL's settings.
    fn settings(&self) -> String {
        let at = |name: &str| self.files.path().join(name).display().to_string();
        format!("cafile={}&certfile={}&keyfile={}", at("ca.pem"), at("own.pem"), at("own.key"))
    }
}

#[test]
fn leases_outlive_a_change_of_authority_and_certificates_on_a_server() {
    let (old, new) = (Pki::generate(), Pki::generate());
    let server = RedisServer::builder().tls(&old, ClientCertificate::Required).start();
    let trust = Trust::new(&old);
    let site = Site::at(format!("{}?{}", server.tls_url(), trust.settings()));
    live_through(&site, "", &Site::at(server.url()), || {
        server.change_authority(&new);
        sleep(GAP);
        trust.put(&new);
    });
}

#[test]
fn leases_outlive_a_change_of_authority_under_sentinels() {
    let (old, new) = (Pki::generate(), Pki::generate());
    let set = SentinelSet::builder().replicas(0).tls(&old).start();
    let trust = Trust::new(&old);
    let site = Site::at(format!("{}?{}", set.url(), trust.settings()));
    live_through(&site, "", &Site::at(set.servers()[0].url()), || {
        set.servers().iter().for_each(|it| it.change_authority(&new));
        for sentinel in set.sentinels() {
            // One has no command for that.
            let put = |name: &str, text: &str| fs::write(sentinel.dir().join(name), text).unwrap();
            put("tls-ca-cert-file.pem", new.ca().certificate());
            put("tls-cert-file.pem", new.server().certificate());
            put("tls-key-file.pem", new.server().key());
            sentinel.restart();
        }
        sleep(GAP);
        trust.put(&new);
    });
}

#[test]
fn leases_outlive_a_change_of_authority_of_a_cluster() {
    let (old, new) = (Pki::generate(), Pki::generate());
    let cluster = Cluster::builder().replicas(0).tls(&old).start();
    let (trust, seen) = (Trust::new(&old), Trust::new(&old));
    let site = Site::at(format!("{}?{}", cluster.url(), trust.settings()));
    let judge = Site::at(format!("{}?{}", cluster.url(), seen.settings()));
    live_through(&site, "", &judge, || {
        cluster.nodes().iter().for_each(|it| it.change_authority(&new));
        seen.put(&new);
        sleep(GAP);
        trust.put(&new);
    });
}

#[test]
fn leases_outlive_a_change_of_authority_of_a_quorum() {
    let (old, new) = (Pki::generate(), Pki::generate());
    let builder = RedisServer::builder().tls(&old, ClientCertificate::Required);
    let servers = [(); 3].map(|()| builder.clone().start());
    let trust = Trust::new(&old);
    let quorum = |urls: Vec<String>| {
        Site::at(format!("quorum:{},keep_leases=yes,node_timeout=2s", urls.join(",")))
    };
    let secured = |node: &RedisServer| format!("{}?{}", node.tls_url(), trust.settings());
    let site = quorum(servers.iter().map(secured).collect());
    let judge = quorum(servers.iter().map(RedisServer::url).collect());
    live_through(&site, "", &judge, || {
        servers.iter().for_each(|it| it.change_authority(&new));
        sleep(GAP);
        trust.put(&new);
    });
}
