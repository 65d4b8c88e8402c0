//! Which store is meant, and by which settings: the same wherever a command is started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Site, finish};

const SECRET: &str = "s3same-open";

#[test]
fn a_relative_directory_is_refused_with_the_absolute_one_wherever_it_is_set() {
    let site = Site::embedded();
    let here = site.path("").canonicalize().unwrap();
    for (url, name) in [
        ("embedded:locks", "locks"),
        ("embedded:./locks", "locks"),
        ("quorum:embedded:a,embedded:b,embedded:c", "a"),
    ] {
        let meant = format!(
            "is relative, so each working directory has another store; for the one below this \
             directory, write embedded:{}",
            here.join(name).display()
        );
        for line in ["ls", "run k -- echo never"] {
            let mut command = site.command(line.split(' '));
            finish(command.env("LEASEHOLD_STORE", url)).complains(78, &meant);
            site.line(&format!("--store {url} {line}")).complains(78, &meant);
        }
    }
    fs::write(site.path("config.toml"), "store = 'embedded:locks'\n").unwrap();
    let mut command = site.command(["--config", "config.toml", "ls"]);
    finish(command.env_remove("LEASEHOLD_STORE")).complains(78, "is relative");
    let mut command = site.command(["ls"]);
    finish(command.env("LEASEHOLD_STORE", "embedded:~/locks"))
        .complains(78, "~ is not replaced here");
    assert!(!site.path("locks").exists());
}

#[test]
fn what_only_asks_or_acts_on_what_is_held_makes_no_store() {
    let questions = [
        ("ls", 0),
        ("ls --json", 0),
        ("show k", 0),
        ("show k --json", 0),
        ("wait k", 0),
        ("doctor", 0),
        ("doctor --json", 0),
        ("release --all --owner x --yes", 0),
        ("ask k", 76),
        ("ask k --fence 1", 76),
        ("force-release k --fence 1", 76),
        ("set-limit k 3", 76),
        ("renew", 76),
        ("release", 76),
    ];
    let lease = Site::embedded().line("acquire k").expect(0).stdout;
    let dir = Site::embedded();
    let path = |name: &str| dir.path(name).display().to_string();
    fs::create_dir(dir.path("empty")).unwrap();
    let quorum = format!("quorum:embedded:{},embedded:{}", path("a"), path("b"));
    for store in [dir.store().to_owned(), format!("embedded:{}", path("empty")), quorum] {
        let site = Site::at(store);
        for (line, code) in questions {
            let mut command = site.command(line.split(' '));
            finish(command.env("LEASEHOLD_LEASE", lease.trim())).expect(code);
        }
        let mut observer = site.start(["observe", "k"]);
        assert_eq!(observer.line(), "- - -");
        drop(observer);
        let doctor = site.line("doctor").expect(0).stdout;
        assert!(doctor.contains("no store is here yet"), "{doctor}");
        assert_eq!(site.line("ls").expect(0).stdout, "");
        assert!(site.line("show k").expect(0).stdout.contains("free"));
        assert!(site.line("show k --json").expect(0).stdout.contains("\"lock\":null"));
    }
    let left: Vec<_> = fs::read_dir(dir.path("")).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read_dir(dir.path("empty")).unwrap().count(), 0);
}

#[test]
fn who_watches_a_post_before_there_is_a_store_sees_its_first_leader() {
    let site = Site::embedded();
    let mut observer = site.start(["observe", "post"]);
    assert_eq!(observer.line(), "- - -");
    let mut leader = site.start("elect post --owner me -- sleep 1000".split(' '));
    assert!(observer.line().ends_with(" me -"));
    leader.process().kill();
}

#[test]
fn a_way_back_from_a_directory_that_is_not_there_leads_nowhere_and_makes_nothing() {
    let site = Site::embedded();
    let url = format!("embedded:{}", site.path("x/../locks").display());
    site.run(["--store", &url, "run", "k", "--", "echo", "never"]).complains(78, "check the path");
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 0);
    fs::create_dir(site.path("x")).unwrap();
    site.run(["--store", &url, "run", "k", "--", "true"]).expect(0);
    assert!(site.path("locks/store").exists());
}

#[test]
fn a_user_outside_the_group_is_refused_with_the_reason_and_root_is_of_all_groups() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT TRIED: this user can't make a directory of another's");
        return;
    }
    let site = Site::embedded();
    fs::create_dir(site.path("locks")).unwrap();
    std::os::unix::fs::chown(site.path("locks"), Some(61_236), Some(61_237)).unwrap();
    fs::set_permissions(site.path("locks"), fs::Permissions::from_mode(0o700)).unwrap();
    site.line("run k -- echo never").complains(78, "belongs to user 61236, not to 0");
    assert_eq!(fs::read_dir(site.path("locks")).unwrap().count(), 0);
    fs::set_permissions(site.path("locks"), fs::Permissions::from_mode(0o2770)).unwrap();
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let run_as = |user: u32, group: u32| {
        let mut command = site.command(["run", "k", "-n", "--", "true"]);
        finish(command.env("HOME", "/nonexistent").current_dir("/").uid(user).gid(group))
    };
    run_as(61_238, 61_238)
        .complains(78, "is for user 61236 and group 61237, not for user 61238")
        .complains(78, "usermod -aG 61237 USER");
    // Root has the rights of all groups, and leaves them to their members.
    site.line("run k -- true").expect(0);
    run_as(61_238, 61_237).expect(0);
    run_as(61_236, 61_237).expect(0);
}

#[test]
fn a_directory_of_another_program_is_refused_and_left_as_it_is() {
    let site = Site::embedded();
    fs::create_dir(site.path("locks")).unwrap();
    fs::write(site.path("locks/store"), "precious").unwrap();
    for line in ["ls", "show k", "wait k", "run k -- echo never", "acquire k"] {
        site.line(line).complains(78, "has no store, but another file (store)");
    }
    assert_eq!(fs::read_dir(site.path("locks")).unwrap().count(), 1);
    assert_eq!(site.read("locks/store"), "precious");
}

#[test]
fn what_is_no_store_is_met_with_what_may_be_meant() {
    let site = Site::embedded();
    for (url, meant) in [
        ("localhost", "redis://localhost?"),
        ("db.example.com:6379", "redis://db.example.com:6379?"),
        ("/tmp/foo", "embedded:/tmp/foo?"),
    ] {
        site.run(["--store", url, "ls"]).complains(78, meant);
        finish(site.command(["ls"]).env("LEASEHOLD_STORE", url)).complains(78, meant);
    }
}

#[test]
fn a_variable_that_is_set_and_empty_is_a_mistake_and_leads_to_no_other_store() {
    let site = Site::embedded();
    for name in ["STORE", "CONFIG", "PASSWORD", "PASSWORD_FILE", "LOG", "LEASE", "OWNER", "OUTER"] {
        let name = format!("LEASEHOLD_{name}");
        for line in ["ls", "run k -- echo never"] {
            let mut command = site.command(line.split(' '));
            finish(command.env(&name, "")).complains(78, &format!("{name} is set and empty"));
        }
    }
    assert!(!site.path("locks").exists());
    // It is not ours, and its specification says so.
    finish(site.command(["ls"]).env("XDG_CONFIG_HOME", "")).expect(0);
}

#[test]
fn a_store_with_an_invisible_end_is_no_other_store() {
    let site = Site::embedded();
    for end in ["\r", "\n", " ", "\t"] {
        let store = format!("{}{end}", site.store());
        let mut command = site.command(["run", "k", "--", "echo", "never"]);
        finish(command.env("LEASEHOLD_STORE", &store)).complains(78, "begins or ends in a blank");
        site.run(["--store", &store, "ls"]).complains(78, "begins or ends in a blank");
    }
    assert!(!site.path("locks").exists());
}

#[test]
fn the_default_store_can_be_forbidden() {
    let site = Site::embedded();
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    let file = site.path(".config/leasehold/config.toml");
    let unnamed = |words: &[&str]| {
        let mut command = site.command(words);
        finish(command.env_remove("LEASEHOLD_STORE"))
    };
    unnamed(&["--no-default-store", "run", "k", "--", "echo", "never"])
        .complains(78, "no store is named, and --no-default-store forbids the default store");
    fs::write(&file, "default_store = 'no'\n").unwrap();
    let by = format!("the config file {} forbids the default store", file.display());
    for line in ["ls", "run k -- echo never", "hold k", "why k"] {
        unnamed(&line.split(' ').collect::<Vec<_>>()).complains(78, &by);
    }
    // What is named is no default.
    site.line("run k -- true").expect(0);
    site.line("--no-default-store run k -- true").expect(0);
    fs::write(&file, format!("default_store = 'no'\nstore = '{}'\n", site.store())).unwrap();
    unnamed(&["run", "k", "--", "true"]).expect(0);
}

#[test]
fn what_is_free_is_free_in_a_store_that_is_named() {
    let server = RedisServer::start();
    for made in [false, true] {
        for site in [Site::embedded(), Site::at(format!("{}?prefix=lock@", server.url()))] {
            if made {
                site.line("run other -- true").expect(0);
            }
            let store = site.store();
            let is_named = |line: &str| {
                let done = site.line(line).expect(0);
                assert!(format!("{}{}", done.stdout, done.stderr).contains(store), "{done:?}");
            };
            for line in ["ls", "ls --json", "show k", "show k --json", "why k", "why k --json"] {
                is_named(line);
            }
            for line in ["wait k", "log k", "release --all --owner nobody"] {
                is_named(line);
            }
            assert_eq!(site.line("-q ls").expect(0).stderr, "");
            assert_eq!(site.line("-q wait k").expect(0).stderr, "");
        }
    }
}

#[test]
fn details_say_which_store_it_is_and_what_named_it() {
    let site = Site::embedded();
    let store = site.store();
    let says = |words: &[&str], by: &str| {
        let mut command = site.command(words);
        let done = finish(if by.contains("LEASEHOLD_STORE") {
            &mut command
        } else {
            command.env_remove("LEASEHOLD_STORE")
        });
        let told = format!("the store is {store}, named by {by}");
        assert!(done.stderr.contains(&told), "{told} is not in {done:?}");
    };
    says(&["-v", "ls"], "LEASEHOLD_STORE");
    says(&["-v", "--store", store, "run", "k", "--", "true"], "--store");
    fs::write(site.path("c.toml"), format!("store = '{store}'\n")).unwrap();
    says(&["-v", "--config", "c.toml", "ls"], "the config file c.toml");
}

#[test]
fn a_home_that_is_empty_relative_or_anothers_has_no_settings_of_ours() {
    let site = Site::embedded();
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    fs::write(site.path(".config/leasehold/config.toml"), "ttl = 'never'\n").unwrap();
    finish(site.command(["ls"]).env("HOME", "")).expect(0);
    finish(site.command(["ls"]).env("HOME", ".")).expect(0);
    site.line("ls").complains(78, "`ttl`");
    if !rustix::process::geteuid().is_root() {
        println!("NOT TRIED: this user can't become another, whose home would be closed");
        return;
    }
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    let store = tempfile::tempdir().unwrap();
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = site.command(["ls"]);
    command.env("LEASEHOLD_STORE", format!("embedded:{}/s", store.path().display()));
    finish(command.current_dir("/").uid(61_236).gid(61_236)).expect(0);
}

/// Every way in which a URL can hold a password.
const SECRETIVE: [&str; 4] = [
    "redis+unix:///nowhere/r.sock?pass=SECRET",
    "redis+sentinel://127.0.0.1:1/m?sentinel_password=SECRET",
    "quorum:redis://127.0.0.1:1,redis+unix:///nowhere?pass=SECRET,redis://127.0.0.1:2",
    "redis://:SECRET@127.0.0.1:1",
];

#[test]
fn a_password_is_one_wherever_it_stands_in_a_url() {
    let site = Site::embedded();
    for url in SECRETIVE.map(|url| url.replace("SECRET", SECRET)) {
        let done = site.run(["--store", &url, "ls"]);
        assert!(done.stderr.contains("warning: other users of this machine"), "{done:?}");
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        let done = finish(site.command(["-vv", "ls"]).env("LEASEHOLD_STORE", &url));
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        fs::write(site.path("config.toml"), format!("store = '{url}'\n")).unwrap();
        fs::set_permissions(site.path("config.toml"), fs::Permissions::from_mode(0o644)).unwrap();
        let done = site.line("--config config.toml ls").complains(78, "all users can read");
        assert!(!done.stderr.contains(SECRET), "{done:?}");
        // The command runs under another store, and sees nothing of this one.
        let store = site.store().to_owned();
        let mut command = site.command(["--store", &store, "run", "k", "--", "env"]);
        let done = finish(command.env("LEASEHOLD_STORE", &url)).expect(0);
        assert!(!done.stdout.contains(SECRET), "{done:?}");
        assert!(done.stdout.contains(&format!("LEASEHOLD_STORE={store}\n")), "{done:?}");
    }
}

#[test]
fn a_lease_in_the_environment_does_not_reach_the_command() {
    let site = Site::embedded();
    let lease = site.line("acquire other --ttl 1h").expect(0).stdout;
    let mut command = site.command(["run", "k", "--", "env"]);
    let done = finish(command.env("LEASEHOLD_LEASE", lease.trim())).expect(0);
    assert!(!done.stdout.contains("LEASEHOLD_LEASE"), "{done:?}");
}

#[test]
fn a_quorum_of_one_node_is_warned_of() {
    let site = Site::embedded();
    let node = |name: &str| format!("embedded:{}", site.path(name).display());
    let warned = "warning: a quorum of one node tolerates no failure";
    let one = site.run(["--store", &format!("quorum:{}", node("a")), "run", "k", "--", "true"]);
    assert!(one.expect(0).stderr.contains(warned));
    let two = format!("quorum:{},{}", node("b"), node("c"));
    assert_eq!(site.run(["--store", &two, "run", "k", "--", "true"]).expect(0).stderr, "");
}
