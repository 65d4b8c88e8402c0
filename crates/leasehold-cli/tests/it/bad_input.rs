//! Names, lengths of time and files that can't be right.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use crate::harness::Site;

#[test]
fn a_name_that_can_not_be_one_is_refused_by_every_command() {
    let site = Site::embedded();
    let long = vec![b'x'; 513];
    let names: [(&[u8], &str); 5] = [
        (b"", "empty"),
        (&long, "513 bytes"),
        (b"a\nb", "control character at byte 1"),
        (b"a\x1b[2Jb", "control character at byte 1"),
        (b"\xff\xfe", "not UTF-8"),
    ];
    let commands: [&[&str]; 6] = [
        &["run", "-n"],
        &["acquire"],
        &["hold"],
        &["wait"],
        &["show"],
        &["force-release", "--fence", "1"],
    ];
    for (name, problem) in names {
        for command in commands {
            let mut args: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
            args.push(OsStr::from_bytes(name));
            if command[0] == "run" {
                args.extend(["--", "echo", "never"].map(OsStr::new));
            }
            let done = site.run(args).complains(64, problem);
            assert!(!done.stderr.contains('\x1b'), "{done:?}");
        }
    }
    let longest = "x".repeat(512);
    site.run(["run", "-n", &longest, "--", "true"]).expect(0);
    site.run(["run", "-n", "ключ ☃ {k}", "--", "true"]).expect(0);
}

#[test]
fn a_length_of_time_that_can_not_be_one_is_refused() {
    let site = Site::embedded();
    for (option, problem) in [
        ("--ttl 0", "out of range; give 10 ms to 30 days"),
        ("--ttl 0.0001", "out of range; give 10 ms to 30 days"),
        ("--ttl 31days", "out of range; give 10 ms to 30 days"),
        ("--ttl 99999999999999999999", "too many seconds"),
        ("--ttl 9ms", "out of range; give 10 ms to 30 days"),
        ("--max-hold 0", "give at least 10ms"),
        ("--max-hold 9ms", "give at least 10ms"),
        ("--ttl -30s", "can't be negative"),
        ("--ttl soon", "give seconds or a length with units"),
        ("-w -1", "can't be negative"),
        ("-w-0.5", "can't be negative"),
        ("-w nan", "give seconds or a length with units"),
        ("--cooldown 366days", "out of range; give 0 to 365 days"),
        ("--cooldown -1s", "can't be negative"),
        ("--grace -1s", "can't be negative"),
        ("--ttl 1s --grace 2s", "grace"),
    ] {
        site.line(&format!("run k {option} -- echo never")).complains(64, problem);
    }
}

#[test]
fn an_owner_or_note_that_is_too_long_is_refused() {
    let site = Site::embedded();
    let long = "x".repeat(2000);
    site.run(["run", "k", "--owner", &long, "--", "true"]).complains(64, "owner's name");
    site.run(["run", "k", "--meta", &format!("k={long}"), "--", "true"])
        .complains(64, "--meta has");
    site.run(["run", "k", "--meta", "novalue", "--", "true"]).complains(64, "KEY=VALUE");
}

#[test]
fn the_config_file_is_read_and_what_it_should_not_have_is_named() {
    let site = Site::embedded();
    let directory = site.path(".config/leasehold");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("config.toml");
    let run = |line: &str| {
        let mut command = site.command(line.split(' '));
        command.env_remove("LEASEHOLD_STORE");
        crate::harness::finish(&mut command)
    };
    let store = site.store();
    fs::write(&file, format!("store = \"{store}\"\nttl = \"5s\"\nowner = \"from-file\"\n"))
        .unwrap();
    let done = run("run k -- sh -c echo${IFS}$LEASEHOLD_OWNER").expect(0);
    assert_eq!(done.stdout, "from-file\n");
    let done = run("run k --owner typed -- sh -c echo${IFS}$LEASEHOLD_OWNER").expect(0);
    assert_eq!(done.stdout, "typed\n");
    let lease = run("acquire k").expect(0).stdout;
    assert!(lease.contains(" 5000 "), "{lease}");

    fs::write(&file, "sotre = \"redis://x\"\n").unwrap();
    run("ls").complains(78, "unknown key `sotre`; known are `store`");
    fs::write(&file, "store = \n").unwrap();
    run("ls").complains(78, "line 1 is not valid TOML");
    fs::write(&file, "ttl = \"0s\"\n").unwrap();
    run("ls").complains(78, "`ttl`");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    run("ls").complains(78, "config.toml");
}

#[test]
fn a_file_with_a_password_must_not_be_open_to_all_users() {
    let site = Site::embedded();
    let set_mode = |name: &str, mode| {
        fs::set_permissions(site.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::write(site.path("c"), "store = \"redis://:sentinel@127.0.0.1:1\"\n").unwrap();
    fs::write(site.path("p"), "sentinel\n").unwrap();
    let run = |line: &str| {
        let mut command = site.command(line.split(' '));
        command.env_remove("LEASEHOLD_STORE");
        let done = crate::harness::finish(&mut command);
        assert!(!done.stderr.contains("sentinel"), "{done:?}");
        done
    };
    set_mode("c", 0o644);
    set_mode("p", 0o644);
    run("--config c ls").complains(78, "chmod o-rwx");
    run("--store redis://127.0.0.1:1 --password-file p ls").complains(78, "chmod o-rwx");
    set_mode("c", 0o640);
    set_mode("p", 0o600);
    run("--config c ls").complains(69, "127.0.0.1:1");
    run("--store redis://127.0.0.1:1 --password-file p ls").complains(69, "127.0.0.1:1");
    run("--config c --password-file p ls").complains(78, "both give a password");
    fs::write(site.path("p"), "\n").unwrap();
    run("--store redis://127.0.0.1:1 --password-file p ls").complains(78, "is empty");
}
