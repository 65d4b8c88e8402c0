//! Stores on their bad days, as a user of the command meets them.

use std::fs;

use leasehold_testkit::server::RedisServer;

use crate::harness::Site;

#[test]
fn an_embedded_store_that_can_not_be_there_is_named() {
    let site = Site::embedded();
    fs::write(site.path("file"), "").unwrap();
    let path = site.path("file/locks");
    let store = format!("embedded:{}", path.display());
    site.run(["--store", &store, "run", "k", "--", "echo", "never"]).complains(78, "file/locks");
    let relative = site.run(["--store", "embedded:relative", "run", "-n", "k", "--", "true"]);
    relative.expect(0);
    assert!(site.path("relative").is_dir());
}

#[test]
fn the_default_store_is_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::embedded();
    let runtime = site.path("run");
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let run = |line: &str| {
        let mut command = site.command(line.split(' '));
        command.env_remove("LEASEHOLD_STORE").env("XDG_RUNTIME_DIR", &runtime);
        crate::harness::finish(&mut command)
    };
    run("run -n k -- true").expect(0);
    run("acquire k --ttl 1h").expect(0);
    run("run -n k -- true").expect(75);
    let mut open = vec![runtime.clone()];
    let mut seen = 0;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            assert_eq!(metadata.permissions().mode() & 0o077, 0, "{:?}", entry.path());
            seen += 1;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    assert!(seen > 0);
}

#[test]
fn something_else_at_the_locks_name_is_left_alone_and_told() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    let keys = server.cli(&["KEYS", "*"]);
    let key = keys.lines().next().unwrap().to_owned();
    drop(holder);
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    assert_eq!(server.cli(&["LPUSH", &key, "not a lock"]), "1");
    site.line("run -n k -- echo never").complains(69, "\"k\"");
    assert_eq!(server.cli(&["LRANGE", &key, "0", "-1"]), "not a lock");
}

#[test]
fn a_server_that_hangs_is_told_in_time() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("run -n k -- true").expect(0);
    server.pause();
    site.line("run -n k -- echo never").complains(69, &server.addr().to_string());
    server.resume();
}
