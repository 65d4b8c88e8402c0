//! Tests of the meaning of servers' and clients' words.

use super::*;
use Effect::{NotApplied, Unknown};
use ErrorKind::{Config, Denied, Foreign, Full, NotReplicated, Protocol, Unavailable, Unsupported};

#[track_caller]
fn check(code: &str, detail: &str, kind: ErrorKind, effect: Effect, next: Next) -> String {
    let verdict = server(code, detail);
    assert_eq!((verdict.kind, verdict.effect, verdict.next), (kind, effect, next), "{code}");
    verdict.to_error().to_string()
}

#[test]
fn what_a_server_cannot_do_just_now_was_not_done_and_is_tried_again() {
    for code in ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"] {
        check(code, "…", Unavailable, NotApplied, Next::Retry);
    }
}

#[test]
fn a_read_only_replica_is_left_for_another_connection() {
    let text = check("READONLY", "…", Unavailable, NotApplied, Next::Reconnect);
    assert!(text.contains("connect to the primary"), "{text}");
}

#[test]
fn an_unknown_script_is_sent_whole() {
    check("NOSCRIPT", "No matching script", Protocol, NotApplied, Next::SendSource);
}

#[test]
fn a_server_that_takes_no_writes_is_unavailable() {
    check("NOREPLICAS", "…", Unavailable, NotApplied, Next::Retry);
    check("MISCONF", "…", Unavailable, NotApplied, Next::Fail);
    check("OOM", "…", Full, NotApplied, Next::Fail);
}

#[test]
fn foreign_values_and_versions_are_distinguished() {
    check("WRONGTYPE", "…", Foreign, NotApplied, Next::Fail);
    check("LEASEHOLDFOREIGN", "…", Foreign, NotApplied, Next::Fail);
    let text = check("LEASEHOLDVERSION", "2", Unsupported, NotApplied, Next::Fail);
    assert!(text.contains("format 2"), "{text}");
}

#[test]
fn refused_users_learn_which_right_is_missing() {
    let text = "User alice has no permissions to run the 'evalsha' command";
    let text = check("NOPERM", text, Denied, NotApplied, Next::Fail);
    assert!(text.contains("may not run EVALSHA"), "{text}");
    let text = "this user has no permissions to access one of the keys used as arguments";
    let text = check("NOPERM", text, Denied, NotApplied, Next::Fail);
    assert!(text.contains("may not use the keys"), "{text}");
    let text = "The user executing the script can't run this command or subcommand script: 9a";
    check("ERR", text, Denied, Unknown, Next::Fail);
    let text = "User locks has no permissions to run the 'select' command";
    let text = check("ERR", text, Denied, NotApplied, Next::Fail);
    assert!(text.contains("may not run SELECT"), "{text}");
    check("NOAUTH", "Authentication required.", Denied, NotApplied, Next::Reconnect);
    check("WRONGPASS", "invalid username-password pair", Denied, NotApplied, Next::Fail);
}

#[test]
fn a_cluster_node_is_not_taken_for_a_single_server() {
    let text = check("MOVED", "1234 10.0.0.1:6379", Unsupported, NotApplied, Next::Fail);
    assert!(text.contains("redis+cluster://"), "{text}");
    check("ASK", "1234 10.0.0.1:6379", Unsupported, NotApplied, Next::Fail);
}

#[test]
fn a_redirect_says_where_to_and_for_how_long() {
    let redirect = |code, detail| server(code, detail).redirect.map(|it| *it);
    let to = |ask, host: &str, port| Some(Redirect { ask, host: host.to_owned(), port });
    assert_eq!(redirect("MOVED", "3999 10.0.0.1:6381"), to(false, "10.0.0.1", 6381));
    assert_eq!(redirect("ASK", "3999 ::1:6381"), to(true, "::1", 6381));
    assert_eq!(redirect("MOVED", "3999 :6381"), to(false, "", 6381));
    assert_eq!(redirect("MOVED", "3999 ?:6381"), to(false, "", 6381));
    for bad in ["", "3999", "3999 host", "3999 host:port"] {
        assert_eq!(redirect("MOVED", bad), None, "{bad}");
    }
    assert_eq!(redirect("READONLY", "3999 10.0.0.1:6381"), None);
}

#[test]
fn only_replicas_are_not_primaries() {
    assert!(server("READONLY", "").not_primary && server("MASTERDOWN", "").not_primary);
    for code in ["LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"] {
        assert!(!server(code, "").not_primary, "{code}");
    }
}

#[test]
fn keys_of_several_slots_are_for_a_cluster_store() {
    check("CROSSSLOT", "…", Unsupported, NotApplied, Next::Fail);
    let text = "Script attempted to access a non local key in a cluster node script: 9a";
    check("ERR", text, Unsupported, Unknown, Next::Fail);
}

#[test]
fn a_wait_that_is_cut_short_leaves_the_write_done_and_its_replication_unknown() {
    let text = "force unblock from blocking operation, instance state changed";
    check("UNBLOCKED", text, NotReplicated, Effect::Applied, Next::Fail);
}

#[test]
fn a_server_that_cannot_wait_for_disks_is_distinguished_from_one_without_scripts() {
    let text = check("ERR", "unknown command 'WAITAOF', …", Unsupported, NotApplied, Next::Fail);
    assert!(text.contains("leave fsync out"), "{text}");
    let text = "WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
    check("ERR", text, Unsupported, NotApplied, Next::Fail);
}

#[test]
fn servers_of_another_sort_than_the_url_says_are_wrong_settings() {
    let text = "This instance has cluster support disabled";
    check("ERR", text, Config, NotApplied, Next::Fail);
    check("ERR", "unknown command 'SENTINEL', …", Config, NotApplied, Next::Fail);
    let text = check("ERR", "No such master with that name", Config, NotApplied, Next::Fail);
    assert!(text.contains("no primary of this name"), "{text}");
}

#[test]
fn errors_inside_a_script_of_an_old_server_are_recognised() {
    let old = |what: &str| {
        format!("Error running script (call to f_0a): @user_script:3: @user_script: 3: {what}")
    };
    let wrong_type = old("WRONGTYPE Operation against a key holding the wrong kind of value");
    check("ERR", &wrong_type, Foreign, Unknown, Next::Fail);
    let oom = old("-OOM command not allowed when used memory > 'maxmemory'.");
    check("ERR", &oom, Full, NotApplied, Next::Fail);
    let read_only = old("-READONLY You can't write against a read only replica.");
    check("ERR", &read_only, Unavailable, NotApplied, Next::Reconnect);
}

#[test]
fn what_stops_a_script_half_way_may_have_taken_effect() {
    let raised = |what: &str| format!("{what} script: 0a, on @user_script:12.");
    let wrong_type = "Operation against a key holding the wrong kind of value";
    check("WRONGTYPE", &raised(wrong_type), Foreign, Unknown, Next::Fail);
    check("WRONGTYPE", wrong_type, Foreign, NotApplied, Next::Fail);
    let text = "this user has no permissions to run the 'pexpire' command";
    check("NOPERM", &raised(text), Denied, Unknown, Next::Fail);
    check("TRYAGAIN", &raised("…"), Unavailable, Unknown, Next::Fail);
}

#[test]
fn a_record_that_a_script_can_not_read_is_damaged_and_the_scripts_line_is_left_out() {
    for what in ["attempt to index a nil", "bad argument #2 to 'format' (number expected, got nil)"]
    {
        let raised = format!("user_script:9: {what} script: 0a, on @user_script:9.");
        let old =
            format!("Error running script (call to f_0a): @user_script:9: user_script:9: {what}");
        for text in [&raised, &old] {
            let text = check("ERR", text, ErrorKind::Corrupt, NotApplied, Next::Fail);
            assert!(text.contains("is damaged") && !text.contains("user_script"), "{text}");
        }
    }
}

#[test]
fn what_a_server_raises_at_the_first_write_alone_changed_nothing() {
    for code in BEFORE_THE_FIRST_WRITE {
        let text = "You can't write script: 0a, on @user_script:12.";
        assert_eq!(server(code, text).effect, NotApplied, "{code}");
        let old = format!("Error running script (call to f_0a): @user_script:3: -{code} no");
        assert_eq!(server("ERR", &old).effect, NotApplied, "{code}");
    }
}

#[test]
fn a_server_without_scripts_is_unsupported() {
    let text =
        check("ERR", "unknown command `SCAN`, with args…", Unsupported, NotApplied, Next::Fail);
    assert!(text.contains("no command SCAN"), "{text}");
    let args = "'0a' '1' 'leasehold:{the-cluster/sentinel}'";
    let named = format!("unknown command 'EVALSHA', with args beginning with: {args}");
    let text = check("ERR", &named, Unsupported, NotApplied, Next::Fail);
    assert!(text.contains("runs no scripts"), "a lock's name is no command: {text}");
    check("ERR", "unknown command 'EVALSHA', with args…", Unsupported, NotApplied, Next::Fail);
}

#[test]
fn a_database_that_does_not_exist_is_a_wrong_setting() {
    check("ERR", "DB index is out of range", Config, NotApplied, Next::Fail);
}

#[test]
fn what_is_not_understood_is_unknown() {
    let text = check("ERR", "something\u{1b}[2J new", Protocol, Unknown, Next::Fail);
    assert!(text.contains("\\u{1b}"), "{text}");
    check("NEWCODE", "…", Protocol, Unknown, Next::Fail);
}

#[test]
fn a_lost_connection_is_unknown_only_after_a_request() {
    let reset = io::ErrorKind::ConnectionReset;
    let asked = io_error(&reset.into(), Stage::Asked);
    assert_eq!((asked.kind, asked.effect, asked.next), (Unavailable, Unknown, Next::Drop));
    let connecting = io_error(&reset.into(), Stage::Connecting);
    assert_eq!(
        (connecting.kind, connecting.effect, connecting.next),
        (Unavailable, NotApplied, Next::Reconnect)
    );
    let refused = io_error(&io::ErrorKind::ConnectionRefused.into(), Stage::Connecting);
    assert!(refused.to_error().to_string().contains("connection refused"));
    let socket = io_error(&io::ErrorKind::PermissionDenied.into(), Stage::Connecting);
    assert_eq!((socket.kind, socket.next), (Denied, Next::Fail));
}

#[test]
fn a_timeout_is_unavailable_and_as_known_as_it_can_be() {
    let late = Verdict::out_of_time(Unknown, "no answer within 2s");
    assert_eq!((late.kind, late.effect, late.next), (Unavailable, Unknown, Next::Fail));
}

#[test]
fn what_is_branched_on_has_a_reason_and_needs_no_words() {
    for (code, detail, reason) in [
        ("LOADING", "", Reason::Busy),
        ("NOAUTH", "Authentication required.", Reason::NoPassword),
        ("WRONGPASS", "invalid username-password pair", Reason::WrongPassword),
        ("NOPERM", "this user has no permissions to run the 'ping' command", Reason::MissingRight),
        ("ERR", "ACL failure in script: no keys", Reason::MissingRight),
        ("OOM", "command not allowed", Reason::MemoryFull),
        ("READONLY", "", Reason::NotPrimary),
        ("LEASEHOLDVERSION", "9", Reason::OtherVersion),
        ("ERR", "max number of clients reached", Reason::ServerFull),
    ] {
        assert_eq!(server(code, detail).to_error().reason(), Some(reason), "{code} {detail}");
    }
}

#[test]
fn a_cause_that_the_client_library_wraps_keeps_its_number() {
    let full = RedisError::from(io::Error::from_raw_os_error(24));
    let error = judge(&full, Stage::Connecting).to_error();
    assert_eq!(error.reason(), Some(Reason::OpenFiles));
}
