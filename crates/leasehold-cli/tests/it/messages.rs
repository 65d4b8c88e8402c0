//! Messages name what is wrong and what to do, in the command's words.

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::harness::{Site, finish, lock, until};

#[test]
fn a_refused_user_learns_where_a_password_and_rights_come_from() {
    let server = RedisServer::builder()
        .password("open-sesame")
        .acl_user("reader on >reads ~* &* +@read +hello +ping +auth")
        .start();
    let site = Site::at(server.url_for("", ""));
    let at = format!("redis://{}", server.addr());
    let run = |store: &str| {
        let mut command = site.command(["run", "k", "-n", "--", "true"]);
        finish(command.env("LEASEHOLD_STORE", store))
    };
    run(&at).complains(69, "LEASEHOLD_PASSWORD or by --password-file");
    run(&format!("redis://reader:reads@{}", server.addr())).complains(69, "leasehold doctor --acl");
}

#[test]
fn a_command_to_be_typed_names_the_store_with_its_user_and_without_its_password() {
    let server =
        RedisServer::builder().acl_user("reader on >sw0rd-fish ~* &* +@read +hello +auth").start();
    let site = Site::at(server.url());
    let store = format!("redis://reader:sw0rd-fish@{}", server.addr());
    let done = site.run(["run", "k", "-n", "--store", &store, "--", "true"]).expect(69);
    let typed =
        format!("leasehold doctor --acl --user NAME --store redis://reader@{}", server.addr());
    assert!(done.stderr.contains(&typed) && !done.stderr.contains("sw0rd"), "{done:?}");
}

#[test]
fn an_error_of_the_system_is_reported_once() {
    let site = Site::embedded();
    let mut command = site.command(["run", "k", "-n", "--", "true"]);
    let done = finish(command.env("LEASEHOLD_STORE", "embedded:/proc/nothing"));
    assert_eq!(done.stderr.matches("(os error").count(), 1, "{done:?}");
}

#[test]
fn a_wrong_number_or_name_is_answered_with_its_right_form() {
    let site = Site::embedded();
    site.line("force-release k --fence few").complains(64, "as `leasehold show` prints it");
    site.line("ask k --fence -1").complains(64, "--fence");
    for line in ["run k --owner= -- true", "ask k --owner=", "hold k --owner="] {
        site.line(line).complains(64, "give a name");
    }
    let done = site.line("--store redis://127.0.0.1:1?prefx=a ls").expect(78);
    assert!(done.stderr.contains("unknown setting prefx"), "{done:?}");
}

#[test]
fn a_missing_lease_is_answered_with_the_ways_to_give_one() {
    let site = Site::embedded();
    for line in ["renew", "release"] {
        site.line(line).complains(64, "name its file with --lease-file, or give it in");
    }
    site.line("run k -w -- true").complains(64, "give seconds or a length with units");
}

#[test]
fn a_renewal_after_a_release_is_not_blamed_on_the_ttl_alone() {
    let site = Site::embedded();
    let lease = site.line("acquire k --ttl 1h").expect(0).stdout;
    let with = |line: &str| {
        let mut command = site.command(line.split(' '));
        finish(command.env("LEASEHOLD_LEASE", lease.trim()))
    };
    with("release").expect(0);
    with("renew").complains(76, "was released before");
}

fn the_events_of_a_lock_are_logged(site: &Site) {
    let done = site.line("-v run k -n --ttl 20s -- true").expect(0);
    let [acquired, released] = ["acquired key=k fence=", "released key=k fence="].map(|event| {
        let line = done.stderr.lines().find(|line| line.contains(event));
        line.unwrap_or_else(|| panic!("{event:?} is not in {done:?}"))
    });
    let fence =
        |line: &str| line.split("fence=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(fence(acquired), fence(released));
    assert!(acquired.contains("ttl=20s"), "{acquired}");
    let ended = done.stderr.lines().find(|line| line.contains("hold ended"));
    let ended = ended.unwrap_or_else(|| panic!("{done:?}"));
    for part in ["hold{key=k mode=Exclusive fence=", " outcome=\"ended\"}", "held_for="] {
        assert!(ended.contains(part), "{part:?} is not in {ended:?}");
    }
    assert_eq!(site.line("run k -n -- true").expect(0).stderr, "", "nobody asked");

    let mut holder = site.start_script("k", "echo held; exec sleep 600");
    let busy = site.line("-v run k -n -- true").expect(75);
    assert!(busy.stderr.contains("busy key=k"), "{busy:?}");
    let waiter = site.start(["-v", "run", "k", "--", "true"]);
    until("it is in the queue", || lock(site, "k")["waiters"].as_array().unwrap().len() == 1);
    holder.process().signal(Signal::TERM);
    let served = waiter.finish().expect(0);
    for event in ["waiting key=k", "acquired key=k", "released key=k"] {
        assert!(served.stderr.contains(event), "{event:?} is not in {served:?}");
    }
    holder.finish();
}

#[test]
fn a_verbose_command_logs_the_events_of_its_lock_on_one_machine() {
    the_events_of_a_lock_are_logged(&Site::embedded());
}

#[test]
fn a_verbose_command_logs_the_events_of_its_lock_on_redis() {
    let server = RedisServer::start();
    the_events_of_a_lock_are_logged(&Site::at(server.url()));
}

#[test]
fn a_filter_of_the_log_shows_what_it_names_and_is_refused_if_it_can_not_be_read() {
    let site = Site::embedded();
    let run = |filter: &str| {
        finish(site.command(["run", "k", "--", "true"]).env("LEASEHOLD_LOG", filter))
    };
    let shown = run("leasehold::lock=debug,off").expect(0);
    assert!(shown.stderr.contains("DEBUG leasehold::lock"), "{shown:?}");
    assert_eq!(run("off").expect(0).stderr, "");
    run("leasehold=loud").complains(78, "LEASEHOLD_LOG");
}
